// The names of pre-tokenizers in GGUF files, and what each stands for.
//
// A GGUF file names its pre-tokenizer (tokenizer.ggml.pre) instead of holding its expressions; this is the table of the
// names, with the expressions as they stand in the tokenizer.json files of the models that a name was made for.
#pragma once

#include <string_view>
#include <vector>

namespace carpool {

struct GgufPreTokenizer {
  std::string_view name;
  bool nfc = false;                           // text is normalized first
  bool ignore_merges = false;                 // a word that is a token stays whole
  bool add_bos = false;                       // unless the file says otherwise
  std::vector<std::string_view> splits = {};  // expressions, applied one after another
  bool byte_level_split = false;              // and then ByteLevel's own
};

const std::vector<GgufPreTokenizer>& gguf_pre_tokenizers();

// The entry of a name, also of another name for the same; null when there is none.
const GgufPreTokenizer* find_gguf_pre_tokenizer(std::string_view name);

// The expression of Kimi's tokenizers, which stands in no file of theirs (tiktoken.h).
std::string_view kimi_split();

}  // namespace carpool
