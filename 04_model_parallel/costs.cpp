#include "costs.hpp"

namespace manyranks {

double parameters_per_rank(const ModelShape& s, int ranks) {
  const double c = static_cast<double>(s.width), n = ranks, layers = static_cast<double>(s.layers);
  const double block = (12 * c * c + 7 * c) / n + 6 * c;                                     // norms and two biases are whole
  const double tables = static_cast<double>(s.vocab) * c * (s.tie_weights ? 1 : 2) / n;
  return layers * block + tables + static_cast<double>(s.context) * c + 2 * c;               // positions and the last norm too
}

double moved_by_block(const ModelShape& s, int64_t tokens, Sequence sequence) {
  const double c = static_cast<double>(s.width), sc = static_cast<double>(tokens) * c;
  if (sequence == Sequence::whole) return 4 * sc;
  return (sequence == Sequence::split ? 4 * sc : 5 * sc) + 6 * c;
}

double moved_by_ends(const ModelShape& s, int64_t tokens, Sequence sequence) {
  const double c = static_cast<double>(s.width), sc = static_cast<double>(tokens) * c, loss = 3 * static_cast<double>(tokens);
  if (sequence == Sequence::whole) return 2 * sc + loss;
  return (sequence == Sequence::split ? 2 * sc : 2.5 * sc) + loss + static_cast<double>(s.context) * c + 2 * c;
}

double sent_bytes(double elements, int ranks, int64_t element_size) { return 2.0 * (ranks - 1) / ranks * elements * static_cast<double>(element_size); }

double kept_by_block(const ModelShape& s, int64_t tokens, int ranks, Sequence sequence) {
  const double c = static_cast<double>(s.width), n = ranks;
  const double inner = 12 * c / n + static_cast<double>(s.heads) / n;    // q, k, v, heads' output, 4C before and 4C behind GELU; softmax's sums
  const double outer = 2 * c + 4, gathered = 2 * c;                      // inputs of the norms with mean and deviation; outputs of the norms
  const double per_token = sequence == Sequence::whole ? outer + gathered + inner : sequence == Sequence::split ? outer / n + gathered + inner : (outer + gathered) / n + inner;
  return 4 * static_cast<double>(tokens) * per_token;
}

double kept_by_ends(const ModelShape& s, int64_t tokens, int ranks, Sequence sequence) {
  const double c = static_cast<double>(s.width), n = ranks, outer = c + 2, gathered = c;
  const double head = sequence == Sequence::whole ? outer + gathered : sequence == Sequence::split ? outer / n + gathered : (outer + gathered) / n;
  const double indices = 2 * (8 + 1);  // of embedding and loss: where the token is, and whether it is mine
  return static_cast<double>(tokens) * (4 * (head + static_cast<double>(s.vocab) / n) + indices);
}

double kept_by_dense(const ModelShape& s, int64_t tokens) {
  const double head = 2 * static_cast<double>(s.width) + 2 + static_cast<double>(s.vocab);  // log-softmax; the logits go
  return static_cast<double>(s.layers) * kept_by_block(s, tokens, 1, Sequence::whole) + 4 * static_cast<double>(tokens) * head;
}

}  // namespace manyranks
