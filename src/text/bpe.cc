// Loading and merging; see bpe.h.
#include "text/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "text/byte_alphabet.h"
#include "text/rank_merges.h"
#include "text/token_decoder.h"
#include "text/utf8.h"

namespace carpool {
namespace {

uint64_t pack(int left, int right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

size_t hash_pair(uint64_t pair) { return static_cast<size_t>((pair * 0x9E3779B97F4A7C15ull) >> 20); }

// The heap's top is the smallest order: lowest rank first, then leftmost.
bool later(const BpeModel::Scratch::Join& a, const BpeModel::Scratch::Join& b) { return a.order > b.order; }

void refuse_unless_absent(const JsonObject& model, std::string_view key) {
  if (model.has(key) && !model.string(key).empty()) model.fail(key, "is not supported");
}

}  // namespace

BpeModel BpeModel::load(const JsonObject& model, bool byte_level) {
  if (model.has("type") && model.string("type") != "BPE") {
    model.fail("type", fmt::format("model type \"{}\" is not supported, only BPE is", escape(model.string("type"))));
  }
  if (model.number_or("dropout", 0, 0, 1) != 0) model.fail("dropout", "must be null or 0");
  refuse_unless_absent(model, "continuing_subword_prefix");
  refuse_unless_absent(model, "end_of_word_suffix");
  BpeModel result;
  result.byte_level_ = byte_level;
  result.load_vocab(model);
  if (byte_level) {
    result.load_bytes(model);
  } else {
    result.load_characters(model);
  }
  if (model.has("ranks")) {
    result.load_ranks(model);
  } else {
    result.load_merges(model);
  }
  if (!model.boolean_or("ignore_merges", false)) return result;
  if (!byte_level) {
    result.whole_words_ = result.vocab_;
    return result;
  }
  const ByteAlphabet alphabet;
  for (const auto& [spelled, id] : result.vocab_) {
    if (auto bytes = alphabet.bytes_of(spelled)) result.whole_words_.emplace(std::move(*bytes), id);
  }
  return result;
}

void BpeModel::load_vocab(const JsonObject& model) {
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
}

void BpeModel::load_bytes(const JsonObject& model) {
  if (model.boolean_or("byte_fallback", false)) model.fail("byte_fallback", "is not supported by byte-level BPE");
  const ByteAlphabet alphabet;
  for (int b = 0; b < 256; ++b) {
    const auto found = vocab_.find(alphabet.spelling(static_cast<unsigned char>(b)));
    // Published vocabularies lack control characters and the first bytes of planes that hold no text. These disappear:
    // "unk_token" is often an end token here, which text of a user must not become.
    const bool is_rare =
        (b < 0x20 && b != '\t' && b != '\n' && b != '\r') || b == 0x7F || b == 0xC0 || b == 0xC1 || b >= 0xF1;
    if (found == vocab_.end() && !is_rare) model.fail("vocab", fmt::format("has no token for the byte 0x{:02x}", b));
    byte_ids_[static_cast<size_t>(b)] = found == vocab_.end() ? -1 : found->second;
  }
}

void BpeModel::load_characters(const JsonObject& model) {
  const auto id_or_none = [&](std::string_view token) {
    const auto found = vocab_.find(token);
    return found == vocab_.end() ? -1 : found->second;
  };
  for (size_t c = 0; c < ascii_ids_.size(); ++c) ascii_ids_[c] = id_or_none(std::string(1, static_cast<char>(c)));
  fuse_unknown_ = model.boolean_or("fuse_unk", false);
  if (model.has("unk_token")) {
    unknown_ = id_or_none(model.string("unk_token"));
    if (unknown_ < 0) model.fail("unk_token", "is not in the vocabulary");
  }
  byte_fallback_ = model.boolean_or("byte_fallback", false);
  for (int b = 0; byte_fallback_ && b < 256; ++b) {
    const auto byte = static_cast<unsigned char>(b);
    byte_ids_[byte] = id_or_none(byte_spelling(byte));
    if (byte_ids_[byte] < 0) model.fail("vocab", fmt::format("has no token {}", byte_spelling(byte)));
  }
}

void BpeModel::load_ranks(const JsonObject& model) {
  const json::array& list = model.array("ranks");
  std::vector<int64_t> ranks;
  ranks.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    const int64_t* rank = list[i].if_int64();
    if (!list[i].is_null() && (!rank || *rank < 0 || *rank > INT32_MAX)) {
      model.fail("ranks", fmt::format("entry {} must be null or 0 to {}", i, INT32_MAX));
    }
    ranks.push_back(rank ? *rank : -1);
  }
  const std::vector<RankedMerge> merges = merges_of_ranks(vocab_, ranks);
  merges_.resize(std::bit_ceil(2 * merges.size() + 2));
  for (const RankedMerge& m : merges) {
    const uint64_t pair = pack(m.left, m.right);
    slot(pair) = {pair, m.rank, m.result};
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
  ++scratch.lookups;
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
  start(word, scratch.symbols);
  if (scratch.symbols.empty()) return;
  join_all(scratch);
  const auto& symbols = scratch.symbols;
  for (int i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) out.push_back(symbols[static_cast<size_t>(i)].id);
}

// The word as the symbols that merging starts from.
void BpeModel::start(std::string_view word, std::vector<Scratch::Symbol>& symbols) const {
  symbols.clear();
  const auto push = [&](int id) {
    const int at = static_cast<int>(symbols.size());
    symbols.push_back({id, at - 1, at + 1});
  };
  if (byte_level_) {
    symbols.reserve(word.size());
    for (const char c : word) {
      if (const int id = byte_ids_[static_cast<unsigned char>(c)]; id >= 0) push(id);
    }
  } else {
    bool after_unknown = false;
    for (size_t begin = 0, end = 0; begin < word.size(); begin = end) {
      const char32_t c = read_code_point(word, end);
      const auto character = word.substr(begin, end - begin);
      int id = -1;
      if (c < ascii_ids_.size()) {
        id = ascii_ids_[c];
      } else if (const auto found = vocab_.find(character); found != vocab_.end()) {
        id = found->second;
      }
      if (id >= 0) {
        push(id);
      } else if (byte_fallback_) {
        for (const char byte : character) push(byte_ids_[static_cast<unsigned char>(byte)]);
      } else if (unknown_ >= 0 && !(after_unknown && fuse_unknown_)) {
        push(unknown_);
      }
      after_unknown = id < 0;
    }
  }
  if (!symbols.empty()) symbols.back().next = -1;
}

void BpeModel::join_all(Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  const int n = static_cast<int>(symbols.size());
  heap.clear();
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
    ++scratch.lookups;
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
}

}  // namespace carpool
