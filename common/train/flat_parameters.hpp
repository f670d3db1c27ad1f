// All parameters of a module in one contiguous buffer, all gradients in another; the module's tensors become views of them.
// One kernel then updates all of it, one collective reduces all of it, and a shard is a range of it.
//
//   FlatParameters flat(*model, /*multiple_of=*/world_size);
//   loss.backward();                       // accumulates into flat.gradients()
//   communicator.all_reduce(flat.gradients());
//   optimizer.step(learning_rate);
//   flat.zero_grad();                      // never model->zero_grad(): its default drops the views
#pragma once

#include "launch/torch.hpp"

#include <string>
#include <vector>

namespace manyranks {

class FlatParameters {
 public:
  struct Slot {
    std::string name;
    int64_t begin = 0, count = 0;  // elements in the buffer
    torch::Tensor parameter;
  };

  // Makes a buffer of that many elements; by default ordinary memory. Communicator::allocate gives memory that peers can read.
  using Allocate = std::function<torch::Tensor(int64_t count, const char* purpose)>;

  // Copies the values in, and points every parameter and its gradient at the buffers, in the order of named_parameters(), each
  // tensor once (tied ones share a slot) and in its own dense layout (channels_last stays so). The count is padded with zeros
  // to a multiple of `multiple_of`, so that ranks get shards of one size. All must have one dtype and one device: move the
  // module first.
  explicit FlatParameters(torch::nn::Module& module, int64_t multiple_of = 1, const Allocate& allocate = {});

  const torch::Tensor& parameters() const { return parameters_; }  // (padded count)
  const torch::Tensor& gradients() const { return gradients_; }
  const std::vector<Slot>& slots() const { return slots_; }
  int64_t count() const { return count_; }  // without padding

  // Zeros in place.
  void zero_grad();

  // Throws if a parameter or gradient is no longer a view of its slot: after zero_grad(set_to_none), to(device), or an
  // optimiser that replaced it. Cheap: compares pointers.
  void check_views() const;

 private:
  int64_t count_ = 0;
  torch::Tensor parameters_, gradients_;
  std::vector<Slot> slots_;
};

}  // namespace manyranks
