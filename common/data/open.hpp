// --data DIR: looks what is there and opens it. describe() of the result says what was recognised.
#pragma once

#include <memory>
#include <string>

#include "data/dataset.hpp"
#include "data/image_folder.hpp"  // ImageOptions

namespace manyranks {

struct OpenOptions {
  std::string dir = {};              // empty: the embedded data set
  Split split = Split::train;
  std::string embedded = "digits";   // digits | shapes | shapes224: what an empty dir means
  std::uint64_t seed = 1;            // of the embedded data sets
  std::int64_t size = 0;             // of the embedded data sets; 0: their usual size
  int idx_classes = 10;
  ImageOptions image = {};           // for ImageFolder and shards
};

// Known, in this order:
//   IDX          train-images-idx3-ubyte[.gz], train-labels-idx1-ubyte[.gz]; t10k-... for the test split
//   CIFAR-10     data_batch_1.bin ... _5.bin, test_batch.bin, here or in cifar-10-batches-bin/
//   shards       train-*.shard, val-*.shard
//   ImageFolder  train/CLASS/*.jpg and val/CLASS/*.jpg; or CLASS/*.jpg alone, which has no test split
// Anything else is a data_error that lists them.
std::unique_ptr<Dataset> open_dataset(const OpenOptions& options);

}  // namespace manyranks
