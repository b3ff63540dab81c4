// The table; see gguf_pre_tokenizers.h.
#include "text/gguf_pre_tokenizers.h"

#include <algorithm>
#include <utility>

#include "text/pre_tokenizer.h"

namespace carpool {
namespace {

constexpr std::string_view kOneDigit = R"(\p{N})", kThreeDigits = R"(\p{N}{1,3})";
constexpr std::string_view kLineEnd = "[\r\n]";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen35 =  // marks belong to letters
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|)"
    R"(\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200k =  // words are cut before capitals
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
                                     R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
                                     R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
// Files of these models hold the line ends themselves, not their escapes.
constexpr std::string_view kDeepSeekCjk = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
constexpr std::string_view kDeepSeekV3 = R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^)"
                                         "\r\n"
                                         R"(\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[)"
                                         "\r\n"
                                         R"(]*|\s*[)"
                                         "\r\n"
                                         R"(]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDeepSeekAsian = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+";
constexpr std::string_view kDeepSeekLetters =
    "\\s?["
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102"
    "\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
    "]+";
constexpr std::string_view kDeepSeekMarks = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+";
// The last clauses keep Han characters, which the first takes, out of words of other letters.
constexpr std::string_view kKimi =
    R"([\p{Han}]+|)"
    R"([^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])*(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])+(?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace

std::string_view kimi_split() { return kKimi; }

const std::vector<GgufPreTokenizer>& gguf_pre_tokenizers() {
  using P = GgufPreTokenizer;
  static const std::vector<P> table = {
      P{.name = "gpt-2", .byte_level_split = true},
      P{.name = "olmo", .nfc = true, .byte_level_split = true},
      P{.name = "smollm", .splits = {kOneDigit}, .byte_level_split = true},
      P{.name = "qwen2", .nfc = true, .splits = {kQwen2}},
      P{.name = "qwen35", .nfc = true, .splits = {kQwen35}},
      P{.name = "hunyuan", .splits = {kQwen2}},
      P{.name = "llama-bpe", .ignore_merges = true, .add_bos = true, .splits = {kLlama3}},
      P{.name = "glm4", .splits = {kLlama3}},
      P{.name = "deepseek-llm",
        .splits = {kLineEnd, kDeepSeekLetters, kDeepSeekMarks, "\\s+$", kDeepSeekAsian, "\\p{N}+"}},
      P{.name = "deepseek-coder", .splits = {kLineEnd, "\\s?\\p{L}+", "\\s?\\p{P}+", kDeepSeekAsian, kOneDigit}},
      P{.name = "deepseek-v3", .splits = {kThreeDigits, kDeepSeekCjk, kDeepSeekV3}},
      P{.name = "gpt-4o", .ignore_merges = true, .splits = {kO200k}},
      P{.name = "tekken", .ignore_merges = true, .add_bos = true, .splits = {kTekken}},
      P{.name = "bailingmoe", .splits = {kBailing}},
      P{.name = "kimi-k2", .ignore_merges = true, .splits = {kKimi}},
      P{.name = "default", .splits = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Split, "\\p{N}+", "[0-9][0-9][0-9]"}},
  };
  return table;
}

const GgufPreTokenizer* find_gguf_pre_tokenizer(std::string_view name) {
  static constexpr std::pair<std::string_view, std::string_view> kSame[] = {{"llama3", "llama-bpe"},
                                                                            {"llama-v3", "llama-bpe"},
                                                                            {"falcon3", "llama-bpe"},
                                                                            {"pixtral", "llama-bpe"},
                                                                            {"lfm2", "llama-bpe"},
                                                                            {"chatglm-bpe", "glm4"},
                                                                            {"dbrx", "glm4"},
                                                                            {"smaug-bpe", "glm4"},
                                                                            {"deepseek-r1-qwen", "qwen2"},
                                                                            {"megrez", "qwen2"},
                                                                            {"llama4", "gpt-4o"},
                                                                            {"minimax-m2", "gpt-4o"},
                                                                            {"hunyuan-dense", "deepseek-v3"},
                                                                            {"starcoder", "smollm"},
                                                                            {"refact", "smollm"},
                                                                            {"command-r", "smollm"},
                                                                            {"grok-2", "hunyuan"},
                                                                            {"llada-moe", "bailingmoe"},
                                                                            {"phi-2", "gpt-2"}};
  for (const auto& [other, canonical] : kSame) {
    if (name == other) name = canonical;
  }
  const auto& table = gguf_pre_tokenizers();
  const auto found = std::find_if(table.begin(), table.end(), [&](const auto& pre) { return pre.name == name; });
  return found == table.end() ? nullptr : &*found;
}

}  // namespace carpool
