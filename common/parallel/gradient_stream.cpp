#include "parallel/gradient_stream.hpp"

#include <fmt/format.h>

#include "launch/errors.hpp"

namespace manyranks {
namespace {

int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

constexpr int64_t element = 4;  // float32

}  // namespace

ChunkedRow::ChunkedRow(int64_t count, int64_t chunk_bytes, int ranks)
    : padded_(round_up(count, ranks)), chunk_(std::min(padded_, round_up(std::max<int64_t>(1, chunk_bytes / element), ranks))), ranks_(ranks) {}

ChunkBuffers::ChunkBuffers(std::vector<torch::Tensor> buffers)
    : buffers_(std::move(buffers)), works_(buffers_.size()), current_(buffers_.size() - 1) {}

torch::Tensor ChunkBuffers::next() {
  current_ = (current_ + 1) % buffers_.size();
  works_[current_].wait();
  works_[current_] = Work();
  return buffers_[current_];
}

void ChunkBuffers::wait_all() {
  for (Work& work : works_) {
    work.wait();
    work = Work();
  }
}

GradientStream::GradientStream(std::vector<NamedParameter> parameters, ChunkedRow row, ChunkBuffers& buffers, Start start)
    : parameters_(std::move(parameters)), row_(row), buffers_(buffers), start_(std::move(start)), ready_(parameters_.size()) {
  for (size_t i = 0; i < parameters_.size(); ++i)
    hooks_.push_back(std::make_unique<GradientHook>(parameters_[i].tensor, [this, i] { on_gradient(i); }));
}

void GradientStream::on_gradient(size_t index) {
  if (index < next_)
    throw disagree_error("backward", fmt::format("a second gradient of {} after the first was sent away", parameters_[index].name),
                         "one backward() per step; to accumulate, keep whole gradients (DDP with NoSync)");
  ready_[index] = true;
  while (next_ < parameters_.size() && ready_[next_]) pour(next_++);
}

void GradientStream::pour(size_t index) {
  torch::Tensor& parameter = parameters_[index].tensor;
  torch::Tensor gradient = std::exchange(parameter.mutable_grad(), torch::Tensor());
  if (gradient.defined() && gradient.strides() != parameter.strides())
    gradient = torch::empty_strided(parameter.sizes(), parameter.strides(), gradient.options()).copy_(gradient);
  pour(gradient.defined() ? as_row(gradient) : gradient, parameter.numel());
}

void GradientStream::pour(const torch::Tensor& gradient, int64_t count) {
  for (int64_t done = 0; done < count;) {
    if (filled_ == 0) buffer_ = buffers_.next();
    const int64_t n = std::min(count - done, row_.size(chunk_) - filled_);
    torch::Tensor place = buffer_.narrow(0, filled_, n);
    if (gradient.defined()) {
      place.copy_(gradient.narrow(0, done, n));
    } else {
      place.zero_();
    }
    done += n;
    filled_ += n;
    if (filled_ < row_.size(chunk_)) continue;
    buffers_.started(start_(chunk_, buffer_.narrow(0, 0, filled_)));
    ++chunk_;
    filled_ = 0;
  }
}

void GradientStream::finish() {
  torch::NoGradGuard no_grad;
  while (next_ < parameters_.size()) pour(next_++);
  if (chunk_ < row_.chunks()) pour({}, row_.padded() - row_.begin(chunk_) - filled_);  // the padding
  next_ = chunk_ = 0;
  ready_.assign(parameters_.size(), false);
}

}  // namespace manyranks
