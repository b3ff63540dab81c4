// Text to token ids and back, as a Hugging Face tokenizer.json (BPE of bytes, or of characters as SentencePiece has it)
// prescribes.
//
// The stages, each in a file of its own: added tokens are cut out (added_tokens.h), the rest is normalized
// (normalize.h), split into words (pre_tokenizer.h) and merged (bpe.h); token_decoder.h leads back. The ids equal those
// of the Python package `tokenizers`, with deliberate differences: bytes that are not UTF-8 become U+FFFD; untrusted
// text never yields a control token (piece.h); spaces taken by a token's rstrip are not encoded a second time when
// another added token begins among them; an added token decodes to its own text, also outside ASCII; broken runs of
// byte tokens decode as broken UTF-8 does everywhere here. What a file asks for and carpool lacks is refused at load.
// "truncation" and "padding" of the file describe batches for training and are not applied. Streaming output:
// stream_decoder.h.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/piece.h"

namespace carpool {

// Immutable and safe to share between threads; copies share one state.
class Tokenizer {
 public:
  // Reads a tokenizer.json of at most 256 MiB and 2^22 tokens. Throws Error: kMissing when there is no such file,
  // kMalformed with the key path when it breaks its format or needs a feature that is not supported.
  static Tokenizer load(const std::string& path);
  // The same from memory; `where` stands for the file's name in errors.
  static Tokenizer parse(std::string_view text, const std::string& where);
  // The same from the parsed text of a tokenizer.json; tokenizer_gguf.h makes one from other files.
  static Tokenizer from_json(const json::value& root, const std::string& where);

  // `add_special`: put in the tokens that the file's post-processor adds (such as a begin-of-text token).
  // `parse_special`: whether control tokens spelled in `text` become those tokens; false for text of a user.
  // Linear in the text up to a logarithm. Throws Error{kMalformed} only when the file's split expression needs
  // unreasonably many steps on this text, Error{kUsage} for a text of 1 GiB or more.
  std::vector<int> encode(std::string_view text, bool add_special, bool parse_special = true) const;
  // Encodes the concatenation of `pieces`; control tokens are recognised only within trusted stretches. Words may
  // span pieces, as they would in one text.
  std::vector<int> encode(std::span<const Piece> pieces, bool add_special) const;

  // The whole text of `ids`, without the space that some tokenizers begin texts with; broken UTF-8 replaced by U+FFFD;
  // ids outside the vocabulary stand for nothing.
  // `skip_special`: leave out tokens marked special.
  std::string decode(std::span<const int> ids, bool skip_special) const;

  int vocab_size() const;  // highest id + 1
  // By the file's spelling (a leading space is U+0120 or U+2581), or an added token's content.
  std::optional<int> token_id(std::string_view token) const;
  bool is_special(int id) const;          // marked special in the file
  bool is_control(int id) const;          // not for untrusted text (added_tokens.h), except as the unknown token
  std::string token_bytes(int id) const;  // raw bytes, perhaps part of a character; empty for unknown ids

  struct State;  // opaque; see tokenizer_state.h

 private:
  explicit Tokenizer(std::shared_ptr<const State> state) : state_(std::move(state)) {}
  std::shared_ptr<const State> state_;
};

}  // namespace carpool
