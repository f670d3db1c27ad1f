// The rival: PyTorch's own c10d::Reducer, the engine of DistributedDataParallel, driven from C++ over our communicator. The
// transport, the model and the optimiser are the same, so the difference is the reducer's.
#pragma once

#include "parallel/strategy.hpp"  // Strategy, StrategyOptions

namespace manyranks {

// `own_optimizer`: PyTorch's torch::optim in place of our fused one, and gradients that are views of the reducer's buckets (no copy
// out of them), as a program without this library would have it at its best. Our fused optimiser wants them in one row.
std::unique_ptr<Strategy> make_reducer_rival(Communicator& world, Model& model, const StrategyOptions& options, const std::string& own_optimizer = "");

}  // namespace manyranks
