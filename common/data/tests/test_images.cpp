// JPEG, resize, ImageFolder, and how a folder is recognised.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "data/jpeg.hpp"
#include "data/open.hpp"
#include "data/resize.hpp"
#include "data/shapes.hpp"
#include "temporary_folder.hpp"

using namespace manyranks;

namespace {

Bytes drawn(int side, std::int64_t index = 0) {
  Shapes shapes(Split::train, side);
  Bytes pixels(shapes.shape().values());
  shapes.read(index, pixels.data());
  return pixels;
}

TEST(Jpeg, RoundTripKeepsThePicture) {
  Bytes pixels;
  for (int y = 0; y < 64; ++y)
    for (int x = 0; x < 48; ++x)
      for (int value : {4 * x, 3 * y, 255 - 2 * x - y}) pixels.push_back(static_cast<std::uint8_t>(value));
  Image image;
  decode_jpeg(encode_jpeg(pixels.data(), 48, 64, 95), "x", image);
  ASSERT_EQ(image.width, 48);
  ASSERT_EQ(image.height, 64);
  for (std::size_t i = 0; i < pixels.size(); ++i) ASSERT_NEAR(pixels[i], image.pixels[i], 8) << i;
}

TEST(Jpeg, ReducedScaleCoversWhatIsAskedFor) {
  const Bytes jpeg = encode_jpeg(drawn(224).data(), 224, 224, 90);
  Image image;
  for (auto [wanted, got] : {std::pair{28, 28}, {29, 56}, {57, 112}, {113, 224}, {500, 224}}) {
    decode_jpeg(jpeg, "x", image, {wanted, wanted});
    EXPECT_EQ(image.width, got) << wanted;
  }
}

TEST(Jpeg, EveryTruncationIsRefused) {
  const Bytes jpeg = encode_jpeg(drawn(32).data(), 32, 32, 90);
  Image image;
  for (std::size_t size = 0; size + 2 < jpeg.size(); ++size) {  // the last two bytes are the end marker
    try {
      decode_jpeg({jpeg.data(), size}, "cut.jpg", image);
      ADD_FAILURE() << size << " of " << jpeg.size() << " bytes were accepted";
      return;
    } catch (const Error& error) {
      ASSERT_EQ(error.code, Exit::data);
      ASSERT_NE(std::string(error.what()).find("cut.jpg: at byte "), std::string::npos) << error.what();
    }
  }
}

TEST(Jpeg, RefusesWhatIsNoJpeg) {
  Image image;
  auto decode = [&](const Bytes& bytes, const std::string& what) { expect_error(Exit::data, "a.jpg", what, [&] { decode_jpeg(bytes, "a.jpg", image); }); };
  decode({}, "at byte 0: the file is empty");
  decode({0x89, 'P', 'N', 'G'}, "at byte 0: no JPEG");
  Bytes huge = encode_jpeg(drawn(32).data(), 32, 32, 90);
  const Bytes marker = {0xff, 0xc0};
  auto frame = std::search(huge.begin(), huge.end(), marker.begin(), marker.end());
  ASSERT_NE(frame, huge.end());
  for (int i = 5; i < 9; ++i) frame[i] = 0xf0;  // height and width: 61680 each, 11 GB of pixels
  decode(huge, "61680x61680 pixels claimed");
  EXPECT_LT(image.pixels.capacity(), 1u << 20);
}

// The definition, in double precision, one pixel at a time.
double reference(const Bytes& source, int in, int full, int x, int y, int c) {
  const double scale = double(in) / full, support = std::max(1.0, scale);
  double sum = 0, total = 0;
  for (int j = 0; j < in; ++j)
    for (int i = 0; i < in; ++i) {
      const double wx = std::max(0.0, 1 - std::abs(i + 0.5 - (x + 0.5) * scale) / support);
      const double wy = std::max(0.0, 1 - std::abs(j + 0.5 - (y + 0.5) * scale) / support);
      sum += wx * wy * source[static_cast<std::size_t>((j * in + i) * 3 + c)];
      total += wx * wy;
    }
  return sum / total;
}

TEST(Resize, MatchesTheDefinition) {
  const int in = 40;
  const Bytes source = drawn(in);
  for (int full : {7, 23, 40, 61}) {
    Bytes out(static_cast<std::size_t>(3 * full * full));
    resize_bilinear(source.data(), stretch(in, in, 3, full), out.data());
    for (int y = 0; y < full; y += 3)
      for (int x = 0; x < full; ++x)
        for (int c = 0; c < 3; ++c)
          ASSERT_NEAR(out[static_cast<std::size_t>((y * full + x) * 3 + c)], reference(source, in, full, x, y, c), 0.51) << full << ": " << x << "," << y;
  }
}

TEST(Resize, CropIsAPartOfTheWhole) {
  const Bytes source = drawn(60);  // seen as 40 wide, 90 high: the same bytes
  const Resize crop = centre_crop(40, 90, 3, 24);
  EXPECT_EQ(crop.full_width, 24);
  EXPECT_EQ(crop.full_height, 54);
  EXPECT_EQ(crop.top, 15);
  Resize whole = crop;
  whole.top = 0, whole.out_height = 54;
  Bytes part(3 * 24 * 24), all(3 * 24 * 54);
  resize_bilinear(source.data(), crop, part.data());
  resize_bilinear(source.data(), whole, all.data());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + 15 * 24 * 3));
}

TEST(ImageFolder, ReadsWhatWasWritten) {
  TemporaryFolder folder;
  const Shapes shapes(Split::train, 48);
  write_image_folder(shapes, folder.path(), 60);
  const ImageFolder data(folder.path(), {.size = 48});
  ASSERT_EQ(data.size(), 60);
  EXPECT_EQ(data.classes(), 10);
  Bytes out(data.shape().values()), original(out.size());
  for (std::int64_t i = 0; i < 60; i += 13) {
    const auto label = data.read(i, out.data());
    const std::int64_t number = std::stoll(data.path(i).stem().string());
    EXPECT_EQ(shapes.read(number, original.data()), label);
    double error = 0;
    for (std::size_t k = 0; k < out.size(); ++k) error += std::abs(out[k] - original[k]);
    EXPECT_LT(error / static_cast<double>(out.size()), 16);
  }
}

TEST(ImageFolder, RefusesBadFolders) {
  TemporaryFolder folder;
  const Bytes jpeg = encode_jpeg(drawn(16).data(), 16, 16, 90);
  for (const char* name : {"train/cat/1.jpg", "train/dog/1.JPEG", "val/cat/1.jpg"}) folder.write(name, jpeg);
  auto open = [&](Split split) { return open_dataset({.dir = folder.path().string(), .split = split, .image = {.size = 8}}); };
  EXPECT_EQ(open(Split::train)->size(), 2);
  expect_error(Exit::data, "val/dog", "this class folder is missing", [&] { open(Split::test); });
  std::filesystem::create_directories(folder.path() / "val/dog");
  expect_error(Exit::data, "val/dog", "no JPEG file in this class folder", [&] { open(Split::test); });
  folder.write("val/dog/1.jpg", jpeg);
  EXPECT_EQ(open(Split::test)->size(), 2);
  folder.write("val/emu/1.jpg", jpeg);
  expect_error(Exit::data, "val/emu", "not in the training split", [&] { open(Split::test); });
  const auto gone = open(Split::train);
  std::filesystem::remove_all(folder.path() / "train/cat");
  Bytes out(3 * 64);
  expect_error(Exit::data, "train/cat/1.jpg", "No such file", [&] { gone->read(0, out.data()); });
}

TEST(Open, SaysWhatItFound) {
  EXPECT_EQ(open_dataset({})->name(), "digits");
  EXPECT_EQ(open_dataset({.embedded = "shapes224"})->shape(), (ImageShape{3, 224, 224}));
  expect_error(Exit::usage, "open data", "no embedded data set is called cats", [] { open_dataset({.embedded = "cats"}); });
  expect_error(Exit::data, "/nowhere", "No such file", [] { open_dataset({.dir = "/nowhere"}); });
  TemporaryFolder folder;
  const std::string dir = folder.path().string();
  expect_error(Exit::data, dir, "nothing known", [&] { open_dataset({.dir = dir}); });

  folder.write("cifar-10-batches-bin/test_batch.bin", Bytes(3073, 0));
  EXPECT_EQ(open_dataset({.dir = dir, .split = Split::test})->name(), "cifar10");
  expect_error(Exit::data, "data_batch_1.bin", "No such file", [&] { open_dataset({.dir = dir}); });

  folder.write("train-labels-idx1-ubyte", {0, 0, 8, 1, 0, 0, 0, 1, 5});
  expect_error(Exit::data, "train-images-idx3-ubyte", "missing beside the labels", [&] { open_dataset({.dir = dir}); });
  folder.write("train-images-idx3-ubyte", {0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 99});
  const auto data = open_dataset({.dir = dir});
  EXPECT_EQ(data->describe(), "IDX (MNIST format), " + dir + "/train-images-idx3-ubyte: 1 samples, 1x1x1, 10 classes");
}

}  // namespace
