#include "data/jpeg.hpp"

#include <fmt/format.h>

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
// jpeglib.h needs FILE and size_t first.
#include <jpeglib.h>
#include <jerror.h>

namespace manyranks {

namespace {

constexpr std::uint64_t max_pixels = std::uint64_t{1} << 27;  // 134 million: beyond any photo, 400 MB as RGB
constexpr int max_scans = 100;                                // a real progressive file has about 10

// libjpeg reports through C callbacks that must not return: they jump back to decode_jpeg(), which then throws.
// Between the jump and its target there are only C frames, so no destructor is skipped.
struct Failure {
  jpeg_error_mgr manager;  // first: libjpeg hands us a pointer to it
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];
};

[[noreturn]] void fail(j_common_ptr info) {
  auto* failure = reinterpret_cast<Failure*>(info->err);
  info->err->format_message(info, failure->message);
  std::longjmp(failure->jump, 1);
}

// Level -1 is a warning: libjpeg met damage and would go on with invented pixels. Two kinds are harmless: stray bytes
// between segments, and an unknown Adobe colour code; both occur in good ImageNet files.
void on_message(j_common_ptr info, int level) {
  const int code = info->err->msg_code;
  if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_ADOBE_XFORM) fail(info);
}

void on_progress(j_common_ptr info) {
  if (info->is_decompressor && reinterpret_cast<j_decompress_ptr>(info)->input_scan_number > max_scans) {
    std::snprintf(reinterpret_cast<Failure*>(info->err)->message, JMSG_LENGTH_MAX, "more than %d scans", max_scans);
    std::longjmp(reinterpret_cast<Failure*>(info->err)->jump, 1);
  }
}

// The callers' frames hold no objects with destructors: a longjmp past one would be undefined.
void start(jpeg_decompress_struct& info, ByteView bytes) {
  jpeg_mem_src(&info, bytes.data(), bytes.size());
  jpeg_read_header(&info, TRUE);
}

void set_scale(jpeg_decompress_struct& info, JpegSize at_least) {
  info.scale_num = info.scale_denom = 8;
  if (at_least.width <= 0 || at_least.height <= 0) return;
  for (unsigned scale : {1u, 2u, 4u}) {
    if ((std::uint64_t{info.image_width} * scale + 7) / 8 < static_cast<std::uint64_t>(at_least.width)) continue;
    if ((std::uint64_t{info.image_height} * scale + 7) / 8 < static_cast<std::uint64_t>(at_least.height)) continue;
    info.scale_num = scale;
    return;
  }
}

// Adobe writes CMYK inverted, so a product is all that is left of the conversion.
void cmyk_to_rgb(const std::uint8_t* cmyk, std::uint8_t* rgb, unsigned width, bool inverted) {
  for (unsigned x = 0; x < width; ++x)
    for (unsigned c = 0; c < 3; ++c) {
      const unsigned ink = inverted ? cmyk[4 * x + c] : 255u - cmyk[4 * x + c];
      const unsigned key = inverted ? cmyk[4 * x + 3] : 255u - cmyk[4 * x + 3];
      rgb[3 * x + c] = static_cast<std::uint8_t>((ink * key + 127) / 255);
    }
}

void read_rows(jpeg_decompress_struct& info, std::uint8_t* pixels, std::uint8_t* cmyk_row) {
  const std::size_t stride = std::size_t{3} * info.output_width;
  while (info.output_scanline < info.output_height) {
    std::uint8_t* row = pixels + info.output_scanline * stride;
    JSAMPROW target = cmyk_row ? cmyk_row : row;
    jpeg_read_scanlines(&info, &target, 1);
    if (cmyk_row) cmyk_to_rgb(cmyk_row, row, info.output_width, info.saw_Adobe_marker);
  }
  jpeg_finish_decompress(&info);
}

}  // namespace

namespace {

// What a longjmp leaves behind lives here, in a frame above the one that called setjmp: an automatic variable of that frame which
// changed in between has no defined value after the jump.
struct Decoder {
  jpeg_decompress_struct info{};
  Failure failure{};
  jpeg_progress_mgr progress{};
  Bytes cmyk_row;
  Decoder() {
    info.err = jpeg_std_error(&failure.manager);
    failure.manager.error_exit = fail;
    failure.manager.emit_message = on_message;
    progress.progress_monitor = on_progress;
  }
  ~Decoder() { jpeg_destroy_decompress(&info); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
};

// False: libjpeg failed, and failure.message says why.
bool decode(Decoder& decoder, ByteView bytes, const std::string& file, Image& out, JpegSize at_least) {
  jpeg_decompress_struct& info = decoder.info;
  if (setjmp(decoder.failure.jump) != 0) return false;
  jpeg_create_decompress(&info);
  info.progress = &decoder.progress;
  info.mem->max_memory_to_use = 1L << 30;
  start(info, bytes);

  // Huffman coding spends at least one bit on a block of 64 samples: 512 pixels a byte, and we allow twice that.
  const std::uint64_t claimed = std::uint64_t{info.image_width} * info.image_height;
  if (claimed > max_pixels || claimed > 1024 * static_cast<std::uint64_t>(bytes.size()))
    throw bad_file(file, bytes.size() - info.src->bytes_in_buffer,
                   fmt::format("{}x{} pixels claimed, more than {} bytes can hold", info.image_width, info.image_height, bytes.size()));
  set_scale(info, at_least);
  const bool cmyk = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(&info);
  out.width = static_cast<int>(info.output_width);
  out.height = static_cast<int>(info.output_height);
  out.pixels.resize(std::size_t{3} * info.output_width * info.output_height);
  if (cmyk) decoder.cmyk_row.resize(std::size_t{4} * info.output_width);
  read_rows(info, out.pixels.data(), cmyk ? decoder.cmyk_row.data() : nullptr);
  return true;
}

struct Encoder {
  jpeg_compress_struct info{};
  Failure failure{};
  unsigned char* memory = nullptr;
  unsigned long bytes = 0;
  Encoder() {
    info.err = jpeg_std_error(&failure.manager);
    failure.manager.error_exit = fail;
  }
  ~Encoder() {
    jpeg_destroy_compress(&info);
    std::free(memory);
  }
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;
};

bool encode(Encoder& encoder, const std::uint8_t* rgb, int width, int height, int quality) {
  jpeg_compress_struct& info = encoder.info;
  if (setjmp(encoder.failure.jump) != 0) return false;
  jpeg_create_compress(&info);
  jpeg_mem_dest(&info, &encoder.memory, &encoder.bytes);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, quality, TRUE);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    auto* row = const_cast<JSAMPROW>(rgb + std::size_t{3} * info.next_scanline * info.image_width);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  return true;
}

}  // namespace

void decode_jpeg(ByteView bytes, const std::string& file, Image& out, JpegSize at_least) {
  if (bytes.empty()) throw bad_file(file, 0, "the file is empty");
  if (bytes.size() < 3 || bytes[0] != 0xff || bytes[1] != 0xd8 || bytes[2] != 0xff)
    throw bad_file(file, 0, "no JPEG: it does not begin with ff d8 ff", "convert or remove the file");
  Decoder decoder;
  if (decode(decoder, bytes, file, out, at_least)) return;
  const std::uint64_t left = decoder.info.src ? decoder.info.src->bytes_in_buffer : 0;
  throw bad_file(file, bytes.size() - std::min<std::uint64_t>(left, bytes.size()), decoder.failure.message);
}

Bytes encode_jpeg(const std::uint8_t* rgb, int width, int height, int quality) {
  Encoder encoder;
  if (!encode(encoder, rgb, width, height, quality)) throw data_error("encode JPEG", encoder.failure.message);
  return Bytes(encoder.memory, encoder.memory + encoder.bytes);
}

}  // namespace manyranks
