// What a loaded tokenizer.json amounts to; shared by tokenizer.cc (use) and tokenizer_load.cc (reading).
//
// Private to this folder's two files: everybody else includes tokenizer.h.
#pragma once

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalize.h"
#include "text/pre_tokenizer.h"
#include "text/token_decoder.h"
#include "text/tokenizer.h"

namespace carpool {

struct Tokenizer::State {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  TokenDecoder decoder;
  AddedTokenMatcher raw_tokens;         // matched before normalization
  AddedTokenMatcher normalized_tokens;  // matched after it
  StringMap<int> added_ids;             // by content as written in the file
  std::vector<std::string> bytes;       // id -> raw bytes
  std::vector<bool> special, control;   // by id
  std::vector<int> prefix, suffix;      // what add_special puts around a text
};

}  // namespace carpool
