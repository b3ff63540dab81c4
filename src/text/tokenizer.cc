// Encoding and decoding with a loaded tokenizer; see tokenizer.h.
#include "text/tokenizer.h"

#include "base/error.h"
#include "text/tokenizer_state.h"
#include "text/utf8.h"

namespace carpool {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;

}  // namespace

std::vector<int> Tokenizer::encode(std::string_view text, bool add_special, bool parse_special) const {
  const Piece piece{std::string(text), parse_special};
  return encode(std::span(&piece, 1), add_special);
}

std::vector<int> Tokenizer::encode(std::span<const Piece> pieces, bool add_special) const {
  const State& state = *state_;
  MarkedText marked;
  for (const Piece& piece : pieces) {
    marked.append(sanitize_utf8(piece.text), piece.trusted);
    if (marked.text.size() >= kMaxTextBytes) throw Error(ErrorKind::kUsage, "the text to encode is 1 GiB or longer");
  }
  std::vector<int> ids;
  if (add_special) ids = state.prefix;
  std::vector<AddedMatch> outer, inner;
  std::vector<std::string_view> words;
  std::deque<std::string> storage;
  BpeModel::Scratch scratch;
  state.raw_tokens.cut(marked.text, marked.trusted, outer);
  for (const AddedMatch& part : outer) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    const MarkedText normalized = state.normalizer.apply(marked, part.range);
    inner.clear();
    state.normalized_tokens.cut(normalized.text, normalized.trusted, inner);
    for (const AddedMatch& match : inner) {
      if (match.id >= 0) {
        ids.push_back(match.id);
        continue;
      }
      words.clear();
      storage.clear();
      const auto plain =
          std::string_view(normalized.text).substr(match.range.begin, match.range.end - match.range.begin);
      const bool at_start = part.range.begin == 0 && match.range.begin == 0;
      state.pre_tokenizer.split(plain, at_start, words, storage);
      for (std::string_view word : words) state.model.encode_word(word, scratch, ids);
    }
  }
  if (add_special) ids.insert(ids.end(), state.suffix.begin(), state.suffix.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const int> ids, bool skip_special) const {
  std::string bytes;
  for (int id : ids) {
    if (id < 0 || id >= vocab_size() || (skip_special && is_special(id))) continue;
    bytes += state_->bytes[static_cast<size_t>(id)];
  }
  return sanitize_utf8(state_->decoder.strip(bytes));
}

int Tokenizer::vocab_size() const { return static_cast<int>(state_->bytes.size()); }

std::optional<int> Tokenizer::token_id(std::string_view token) const {
  if (const auto found = state_->added_ids.find(token); found != state_->added_ids.end()) return found->second;
  if (const auto found = state_->model.vocab().find(token); found != state_->model.vocab().end()) return found->second;
  return std::nullopt;
}

bool Tokenizer::is_special(int id) const {
  return id >= 0 && id < vocab_size() && state_->special[static_cast<size_t>(id)];
}

bool Tokenizer::is_control(int id) const {
  return id >= 0 && id < vocab_size() && state_->control[static_cast<size_t>(id)];
}

std::string Tokenizer::token_bytes(int id) const {
  return id >= 0 && id < vocab_size() ? state_->bytes[static_cast<size_t>(id)] : std::string();
}

}  // namespace carpool
