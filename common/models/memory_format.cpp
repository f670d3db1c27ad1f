#include "models/memory_format.hpp"

namespace manyranks {

void to_channels_last(torch::nn::Module& module) {
  for (auto& parameter : module.parameters())
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(torch::MemoryFormat::ChannelsLast));
}

}  // namespace manyranks
