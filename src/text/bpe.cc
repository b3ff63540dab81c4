// Loading and merging; see bpe.h.
#include "text/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace carpool {
namespace {

uint64_t pack(int left, int right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

size_t hash_pair(uint64_t pair) { return static_cast<size_t>((pair * 0x9E3779B97F4A7C15ull) >> 20); }

// The heap's top is the smallest order: lowest rank first, then leftmost.
bool later(const BpeModel::Scratch::Join& a, const BpeModel::Scratch::Join& b) { return a.order > b.order; }

void refuse_unless_absent(const JsonObject& model, std::string_view key) {
  if (model.has(key) && !model.string(key).empty()) model.fail(key, "is not supported by byte-level BPE");
}

}  // namespace

BpeModel BpeModel::load(const JsonObject& model, const ByteAlphabet& alphabet) {
  if (model.has("type") && model.string("type") != "BPE") {
    model.fail("type", fmt::format("model type \"{}\" is not supported, only BPE is", escape(model.string("type"))));
  }
  if (model.number_or("dropout", 0, 0, 1) != 0) model.fail("dropout", "must be null or 0");
  if (model.boolean_or("byte_fallback", false)) model.fail("byte_fallback", "is not supported by byte-level BPE");
  refuse_unless_absent(model, "continuing_subword_prefix");
  refuse_unless_absent(model, "end_of_word_suffix");
  BpeModel result;
  result.load_vocab(model, alphabet);
  result.load_merges(model);
  if (model.boolean_or("ignore_merges", false)) {
    for (const auto& [spelled, id] : result.vocab_) {
      if (auto bytes = alphabet.bytes_of(spelled)) result.whole_words_.emplace(std::move(*bytes), id);
    }
  }
  return result;
}

void BpeModel::load_vocab(const JsonObject& model, const ByteAlphabet& alphabet) {
  const JsonObject vocab = model.object("vocab");
  if (vocab.raw().size() > kMaxTokens) model.fail("vocab", fmt::format("has over {} tokens", kMaxTokens));
  vocab_.reserve(vocab.raw().size());
  std::vector<bool> seen;
  for (const auto& [key, value] : vocab.raw()) {
    const auto id = static_cast<size_t>(vocab.integer(key, 0, kMaxTokens - 1));
    if (key.empty()) vocab.fail(key, "a token must not be empty");
    if (id >= seen.size()) seen.resize(id + 1);
    if (seen[id]) vocab.fail(key, fmt::format("the id {} is used twice", id));
    seen[id] = true;
    vocab_.emplace(key, static_cast<int>(id));
  }
  for (int b = 0; b < 256; ++b) {
    const auto found = vocab_.find(alphabet.spelling(static_cast<unsigned char>(b)));
    const bool occurs_in_utf8 = b < 0xC0 || (b >= 0xC2 && b <= 0xF4);
    if (found == vocab_.end() && occurs_in_utf8) {
      model.fail("vocab", fmt::format("has no token for the byte 0x{:02x}", b));
    }
    byte_ids_[static_cast<size_t>(b)] = found == vocab_.end() ? 0 : found->second;
  }
}

void BpeModel::load_merges(const JsonObject& model) {
  const json::array& list = model.array("merges");
  if (list.size() > kMaxTokens) model.fail("merges", fmt::format("has over {} entries", kMaxTokens));
  merges_.resize(std::bit_ceil(2 * list.size() + 2));
  for (size_t i = 0; i < list.size(); ++i) {
    const auto fail = [&](const std::string& what) { model.fail("merges", fmt::format("entry {}: {}", i, what)); };
    std::string_view left, right;
    if (const auto* text = list[i].if_string()) {
      const std::string_view both(*text);
      const size_t space = both.find(' ');
      if (space == std::string_view::npos || both.find(' ', space + 1) != std::string_view::npos) {
        fail("must be two tokens with a space between");
      }
      left = both.substr(0, space), right = both.substr(space + 1);
    } else if (const auto* pair = list[i].if_array();
               pair && pair->size() == 2 && (*pair)[0].is_string() && (*pair)[1].is_string()) {
      left = (*pair)[0].get_string(), right = (*pair)[1].get_string();
    } else {
      fail("must be a string or a pair of strings");
    }
    const auto id_of = [&](std::string_view token, const char* role) {
      const auto found = vocab_.find(token);
      if (found == vocab_.end()) fail(fmt::format("{} \"{}\" is not in the vocabulary", role, escape(token)));
      return found->second;
    };
    const int left_id = id_of(left, "the left part"), right_id = id_of(right, "the right part");
    const int id = id_of(std::string(left) + std::string(right), "the result");
    const uint64_t pair = pack(left_id, right_id);
    slot(pair) = {pair, static_cast<uint32_t>(i), id};  // of two equal merges the later one counts
  }
}

BpeModel::Merge& BpeModel::slot(uint64_t pair) {
  size_t i = hash_pair(pair) & (merges_.size() - 1);
  while (merges_[i].pair != pair && merges_[i].pair != ~uint64_t{0}) i = (i + 1) & (merges_.size() - 1);
  return merges_[i];
}

const BpeModel::Merge* BpeModel::find(int left, int right) const {
  const uint64_t pair = pack(left, right);
  size_t i = hash_pair(pair) & (merges_.size() - 1);
  while (merges_[i].pair != pair) {
    if (merges_[i].pair == ~uint64_t{0}) return nullptr;
    i = (i + 1) & (merges_.size() - 1);
  }
  return &merges_[i];
}

// Queues the join of the symbol at `position` with its right neighbour, if there is such a merge.
void BpeModel::push_join(Scratch& scratch, int position) const {
  const auto& symbols = scratch.symbols;
  const auto& left = symbols[static_cast<size_t>(position)];
  if (left.next < 0) return;
  const Merge* merge = find(left.id, symbols[static_cast<size_t>(left.next)].id);
  if (!merge) return;
  scratch.heap.push_back({uint64_t{merge->rank} << 32 | static_cast<uint32_t>(position), merge->id});
}

void BpeModel::encode_word(std::string_view word, Scratch& scratch, std::vector<int>& out) const {
  if (!whole_words_.empty()) {
    if (const auto found = whole_words_.find(word); found != whole_words_.end()) {
      out.push_back(found->second);
      return;
    }
  }
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  const int n = static_cast<int>(word.size());
  symbols.resize(word.size());
  heap.clear();
  for (int i = 0; i < n; ++i) {
    const auto at = static_cast<size_t>(i);
    symbols[at] = {byte_ids_[static_cast<unsigned char>(word[at])], i - 1, i + 1 < n ? i + 1 : -1};
  }
  for (int i = 0; i + 1 < n; ++i) push_join(scratch, i);
  std::make_heap(heap.begin(), heap.end(), later);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Scratch::Join join = heap.back();
    heap.pop_back();
    const int position = static_cast<int>(join.order & 0xFFFFFFFFu);
    auto& left = symbols[static_cast<size_t>(position)];
    if (left.id < 0 || left.next < 0) continue;  // swallowed, or its right neighbour was
    auto& right = symbols[static_cast<size_t>(left.next)];
    const Merge* merge = find(left.id, right.id);
    if (!merge || merge->id != join.id) continue;  // queued before one of the two grew
    left.id = join.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = position;
    const auto queue = [&](int at) {
      const size_t before = heap.size();
      push_join(scratch, at);
      if (heap.size() != before) std::push_heap(heap.begin(), heap.end(), later);
    };
    if (left.previous >= 0) queue(left.previous);
    queue(position);
  }
  for (int i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) out.push_back(symbols[static_cast<size_t>(i)].id);
}

}  // namespace carpool
