// The tensors are the loader's buffers, in the layout asked for.
#include <gtest/gtest.h>
#include "launch/torch.hpp"

#include "data/shapes.hpp"
#include "data/torch_loader.hpp"

using namespace manyranks;

TEST(TorchLoader, TensorsMatchThePixels) {
  const auto data = std::make_shared<Shapes>(Split::train, 32);
  std::vector<std::uint8_t> pixels(data->shape().values());
  for (Layout layout : {Layout::chw, Layout::hwc}) {
    TorchLoader loader(data, {.batch = 8, .workers = 2, .layout = layout});
    DistributedSampler sampler(21, 1, 2);
    loader.start(sampler);
    EXPECT_EQ(loader.batches(), 2);
    std::size_t place = 0;
    std::vector<std::int64_t> sizes;
    while (auto batch = loader.next()) {
      sizes.push_back(batch->labels.size(0));
      EXPECT_EQ(batch->images.sizes(), (torch::IntArrayRef{sizes.back(), 3, 32, 32}));
      EXPECT_EQ(batch->images.is_contiguous(layout == Layout::chw ? torch::MemoryFormat::Contiguous : torch::MemoryFormat::ChannelsLast), true);
      for (std::int64_t i = 0; i < sizes.back(); ++i) {
        const auto label = data->read(sampler.indices()[place++], pixels.data());
        EXPECT_EQ(batch->labels[i].item<std::int64_t>(), label);
        auto expected = torch::from_blob(pixels.data(), {32, 32, 3}, torch::kUInt8).permute({2, 0, 1}).to(torch::kFloat32) / 255;
        EXPECT_TRUE(torch::allclose(batch->images[i], expected, 1e-5, 1e-6));
      }
    }
    EXPECT_EQ(sizes, (std::vector<std::int64_t>{8, 2}));
    EXPECT_EQ(loader.pinned(), torch::cuda::is_available());
  }
}
