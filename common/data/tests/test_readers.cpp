// IDX, CIFAR-10, shards: good files read back exactly; every kind of bad file is refused with its name and byte.
#include <gtest/gtest.h>
#include <zlib.h>

#include "data/cifar.hpp"
#include "data/idx.hpp"
#include "data/jpeg.hpp"
#include "data/random.hpp"
#include "data/shards.hpp"
#include "temporary_folder.hpp"

using namespace manyranks;

namespace {

Bytes big_endian(std::initializer_list<std::uint32_t> numbers) {
  Bytes out;
  for (std::uint32_t n : numbers)
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<std::uint8_t>(n >> shift));
  return out;
}

Bytes noise(std::size_t count, std::uint64_t seed = 1) {
  Random random(seed);
  Bytes out(count);
  for (auto& byte : out) byte = static_cast<std::uint8_t>(random.bits());
  return out;
}

Bytes joined(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Bytes gzip(const Bytes& plain) {
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  Bytes out(deflateBound(&stream, plain.size()) + 64);
  stream.next_in = const_cast<std::uint8_t*>(plain.data());
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(out.size() - stream.avail_out);
  deflateEnd(&stream);
  return out;
}

const Bytes pixels = noise(3 * 4 * 5);
const Bytes good_images = joined(big_endian({0x803, 3, 4, 5}), pixels);
const Bytes good_labels = joined(big_endian({0x801, 3}), {7, 0, 9});

TEST(Idx, ReadsPlainAndGzip) {
  TemporaryFolder folder;
  const auto labels = folder.write("labels", good_labels);
  for (const auto& bytes : {good_images, gzip(good_images)}) {
    IdxDataset data(folder.write("images", bytes), labels);
    ASSERT_EQ(data.size(), 3);
    EXPECT_EQ(data.shape(), (ImageShape{1, 4, 5}));
    Bytes out(20);
    EXPECT_EQ(data.read(2, out.data()), 9);
    EXPECT_EQ(out, Bytes(pixels.begin() + 40, pixels.end()));
  }
}

TEST(Idx, RefusesBadFiles) {
  auto parse = [](const Bytes& bytes, const std::string& what) {
    expect_error(Exit::data, "some/file", what, [&] { parse_idx(bytes, 3, "some/file"); });
  };
  auto cut = [](Bytes bytes, std::size_t size) { bytes.resize(size); return bytes; };
  auto with = [](Bytes bytes, std::size_t at, std::uint8_t value) { bytes[at] = value; return bytes; };
  parse({}, "at byte 0: the file ends");
  parse(cut(good_images, 10), "at byte 10: the file ends inside the IDX header");
  parse(cut(good_images, 75), "at byte 75: the data ends here, the header promises 76");
  parse(joined(good_images, {0}), "at byte 76: data goes on");
  parse(with(good_images, 0, 1), "at byte 0: no IDX");
  parse(with(good_images, 2, 0x0d), "at byte 2: IDX type 0x0d");
  parse(with(good_images, 3, 1), "at byte 3: 1 dimensions, 3 expected");
  parse(with(good_images, 7, 0), "at byte 4: dimension 0 is zero");
  parse(big_endian({0x803, 0xffffffff, 0xffffffff, 0xffffffff}), "overflow");
  parse(big_endian({0x803, 0xffffffff, 0xffff, 0xffff}), "the data ends here");  // and allocates nothing
}

TEST(Idx, RefusesBadGzip) {
  auto parse = [](const Bytes& bytes, const std::string& what) {
    expect_error(Exit::data, "file.gz", what, [&] { parse_idx(bytes, 3, "file.gz"); });
  };
  const Bytes packed = gzip(good_images);
  Bytes cut = packed, flipped = packed;
  cut.resize(packed.size() - 4);  // inside the checksum: all pixels are there, and still it is refused
  parse(cut, "the gzip data ends early");
  flipped[packed.size() - 6] ^= 1;
  parse(flipped, "broken gzip data (incorrect data check)");
  parse(gzip(joined(good_images, {0})), "at byte 76: data goes on");
  parse(gzip(big_endian({0x803, 0xffff, 0xffff, 0xff})), "cannot hold");
  parse({0x1f, 0x8b}, "the gzip data ends early");
}

TEST(Idx, RefusesLabelsThatDoNotFit) {
  TemporaryFolder folder;
  const auto images = folder.write("images", good_images);
  const auto bad = folder.write("bad", joined(big_endian({0x801, 3}), {7, 10, 9}));
  expect_error(Exit::data, bad.string(), "at byte 9: label 10 of sample 1 is not below 10", [&] { IdxDataset(images, bad); });
  const auto few = folder.write("few", joined(big_endian({0x801, 2}), {7, 1}));
  expect_error(Exit::data, few.string(), "2 labels for the 3 images", [&] { IdxDataset(images, few); });
  expect_error(Exit::data, "nowhere", "No such file", [&] { IdxDataset(folder.path() / "nowhere", few); });
  expect_error(Exit::data, folder.path().string(), "Is a directory", [&] { IdxDataset(folder.path(), few); });
}

TEST(Cifar, ReadsPlanesAsPixels) {
  TemporaryFolder folder;
  Bytes bytes = noise(2 * cifar_record);
  bytes[0] = 3;
  bytes[cifar_record] = 9;
  const auto file = folder.write("data_batch_1.bin", bytes);
  CifarDataset data({file, file});
  ASSERT_EQ(data.size(), 4);
  Bytes out(3072);
  EXPECT_EQ(data.read(3, out.data()), 9);
  for (std::size_t i = 0; i < 1024; ++i)
    for (std::size_t c = 0; c < 3; ++c) ASSERT_EQ(out[3 * i + c], bytes[cifar_record + 1 + 1024 * c + i]);
}

TEST(Cifar, RefusesBadFiles) {
  Bytes bytes(2 * cifar_record, 1);
  auto check = [](const Bytes& b, const std::string& what) { expect_error(Exit::data, "c.bin", what, [&] { check_cifar(b, "c.bin"); }); };
  check({}, "at byte 0: the file is empty");
  check(Bytes(bytes.begin(), bytes.end() - 1), "at byte 3073: 3072 bytes left over after 1 records");
  bytes[cifar_record] = 10;
  check(bytes, "at byte 3073: label 10 of record 1");
}

struct ShardFile {
  Bytes jpeg = encode_jpeg(noise(3 * 16 * 12).data(), 16, 12, 90), bytes;
  ShardFile() {
    auto put = [&](std::uint64_t value, int count) { for (int i = 0; i < count; ++i) bytes.push_back(static_cast<std::uint8_t>(value >> (8 * i))); };
    for (char c : std::string("MRSHARD1")) bytes.push_back(static_cast<std::uint8_t>(c));
    put(4, 4), put(2, 4);
    for (std::uint64_t i = 0; i < 2; ++i) {
      put(64 + i * jpeg.size(), 8), put(jpeg.size(), 4), put(1 + 2 * i, 4), put(crc32(0, jpeg.data(), static_cast<uInt>(jpeg.size())), 4), put(0, 4);
    }
    bytes = joined(joined(bytes, jpeg), jpeg);
  }
};

TEST(Shards, ReadsWhatTheFilesHold) {
  TemporaryFolder folder;
  const ShardFile shard;
  const Shards data({folder.write("a.shard", shard.bytes), folder.write("b.shard", shard.bytes)}, {.size = 8});
  ASSERT_EQ(data.size(), 4);
  EXPECT_EQ(data.classes(), 4);
  Bytes out(3 * 64), expected(3 * 64);
  EXPECT_EQ(data.read(3, out.data()), 3);
  EXPECT_EQ(data.read(2, out.data()), 1);
  decode_and_resize(shard.jpeg, "x", {.size = 8}, expected.data());
  EXPECT_EQ(out, expected);
}

TEST(Shards, RefusesBadFiles) {
  TemporaryFolder folder;
  const Bytes good = ShardFile().bytes;
  auto open = [&](const Bytes& bytes, const std::string& what) {
    const auto file = folder.write("bad.shard", bytes);
    expect_error(Exit::data, file.string(), what, [&] {
      Bytes out(3 * 64);
      Shards({file}, {.size = 8}).read(1, out.data());
    });
  };
  auto with = [&](std::size_t at, std::uint8_t value) { Bytes b = good; b[at] = value; return b; };
  open({}, "at byte 0: the file ends inside the shard header");
  open(with(0, 'X'), "at byte 0: no shard");
  open(with(15, 0xff), "does not fit into the file");
  open(with(16, 0), "at byte 16: sample 0 begins at");
  open(with(16 + 24 + 12, 4), "at byte 52: label 4 of sample 1 is not below 4");
  open(with(good.size() - 9, good[good.size() - 9] ^ 1), "checksum");
  open(Bytes(good.begin(), good.end() - 1), "goes past the end");
  open(joined(good, {0}), "data goes on");
}

}  // namespace
