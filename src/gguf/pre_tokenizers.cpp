// SPDX-License-Identifier: Apache-2.0
// The table of rules. Expressions are those of the models' own tokenizer.json, byte by byte, so
// that text/known_patterns.cpp scans the common ones.
#include "gguf/pre_tokenizers.h"

namespace moebius {
namespace {

#define MOEBIUS_TAIL R"(\s*[\r\n]+|\s+(?!\S)|\s+)"
#define MOEBIUS_SHORT R"((?i:'s|'t|'re|'ve|'m|'ll|'d))"
#define MOEBIUS_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])"
#define MOEBIUS_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])"
#define MOEBIUS_HAN_UPPER R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]])"
#define MOEBIUS_HAN_LOWER R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]])"
// Words of `upper` and `lower` letters with a suffix each, as the o200k vocabulary divides them.
#define MOEBIUS_CASED(upper, lower, suffix)                                                   \
  R"([^\r\n\p{L}\p{N}]?)" upper "*" lower "+" suffix R"(|[^\r\n\p{L}\p{N}]?)" upper "+" lower \
  "*" suffix
// Words of letters, numbers by `digits`, and runs of other characters.
#define MOEBIUS_WORDS(digits) \
  MOEBIUS_SHORT R"(|[^\r\n\p{L}\p{N}]?\p{L}+|)" digits R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|)" MOEBIUS_TAIL

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 = MOEBIUS_WORDS(R"(\p{N})");
constexpr std::string_view kQwen35 = MOEBIUS_SHORT
    R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|)" MOEBIUS_TAIL;
constexpr std::string_view kLlama3 = MOEBIUS_WORDS(R"(\p{N}{1,3})");
constexpr std::string_view kO200k =
    MOEBIUS_CASED(MOEBIUS_UPPER, MOEBIUS_LOWER,
                  MOEBIUS_SHORT "?") R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" MOEBIUS_TAIL;
constexpr std::string_view kTekken = MOEBIUS_CASED(
    MOEBIUS_UPPER, MOEBIUS_LOWER, "") R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)" MOEBIUS_TAIL;
constexpr std::string_view kKimi = R"([\p{Han}]+|)" MOEBIUS_CASED(
    MOEBIUS_HAN_UPPER, MOEBIUS_HAN_LOWER,
    MOEBIUS_SHORT "?") R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)" MOEBIUS_TAIL;
constexpr std::string_view kDigit = R"(\p{N})", kThreeDigits = R"(\p{N}{1,3})",
                           kThreeAscii = "[0-9][0-9][0-9]", kBreak = R"([\r\n])";
constexpr std::string_view kLines = R"([^\n]+|[\n]+)";
constexpr std::string_view kDeepSeekCjk = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
constexpr std::string_view kDeepSeekWords =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|)" MOEBIUS_TAIL;
// Letters with a case, as Unicode knew them then.
constexpr std::string_view kCasedLetters =
    R"(\s?[)"
    R"(A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293})"
    R"(\x{295}-\x{2af}\x{370}-\x{373}\x{376}\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a})"
    R"(\x{38c}\x{38e}-\x{3a1}\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556})"
    R"(\x{10a0}-\x{10c5}\x{13a0}-\x{13f5}\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf})"
    R"(\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a}\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d})"
    R"(\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b}\x{1f5d}\x{1f5f}-\x{1f7d})"
    R"(\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc})"
    R"(\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc})"
    R"(\x{2102}\x{2107}\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128})"
    R"(\x{212a}-\x{212d}\x{212f}-\x{2134}\x{2139}\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}\x{2183})"
    R"(\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4}\x{2ceb}-\x{2cee}\x{2cf2}\x{2cf3}\x{a640}-\x{a66d})"
    R"(\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787}\x{a78b}-\x{a78e}\x{ab70}-\x{abbf})"
    R"(\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a}\x{10400}-\x{1044f})"
    R"(\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2})"
    R"(\x{118a0}-\x{118df}\x{1e900}-\x{1e943})"
    R"(]+)";
constexpr std::string_view kDeepSeekPunctuation =
    R"(\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+)";
constexpr std::string_view kEastAsian = R"([\x{4e00}-\x{9fa5}\x{800}-\x{4e00}\x{ac00}-\x{d7ff}]+)";
constexpr std::string_view kBailing =
    R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view kExaone = MOEBIUS_SHORT
    R"(|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view kSeedCoder =
    MOEBIUS_SHORT R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|)" MOEBIUS_TAIL;
constexpr std::string_view kBloom =
    R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{ff0c}\x{3001}\x{964}\x{6d4}\x{60c})]+)";

// In the order of the specification of the format's names.
constexpr PreTokenizerRule kRules[] = {
    {"gpt-2 mpt olmo jais trillion granite-docling phi-2 exaone4 gigachat mellum modern-bert "
     "a.x-4.0 jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe",
     {kGpt2}},
    {"starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", {kDigit, kGpt2}},
    {"qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan solar-open megrez grok-2", {kQwen2}},
    {"qwen35", {kQwen35}},
    {"llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     {kLlama3},
     /*ignore_merges=*/true,
     /*adds_bos=*/true},
    {"dbrx smaug-bpe glm4 chatglm-bpe", {kLlama3}},
    {"glm5", {kLlama3}, /*ignore_merges=*/true},
    {"gpt-4o llama4 kanana2 talkie minimax-m2", {kO200k}},
    {"tekken", {kTekken}, /*ignore_merges=*/true, /*adds_bos=*/true},
    {"deepseek-v3 hunyuan-dense joyai-llm hy_v4", {kThreeDigits, kDeepSeekCjk, kDeepSeekWords}},
    {"deepseek-llm",
     {kBreak, kCasedLetters, kDeepSeekPunctuation, R"(\s+$)", kEastAsian, R"(\p{N}+)"}},
    {"deepseek-coder", {kBreak, R"(\s?\p{L}+)", R"(\s?\p{P}+)", kEastAsian, kDigit}},
    {"falcon", {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2, kThreeAscii}},
    {"kimi-k2", {kKimi}},
    {"bailingmoe bailingmoe2 llada-moe", {kBailing}},
    {"laguna", {kLines, kQwen2}},
    {"minicpm5", {kThreeDigits, MOEBIUS_WORDS(R"(\p{N}+)")}, /*ignore_merges=*/true},
    {"exaone-moe", {kExaone}},
    {"seed-coder", {kSeedCoder}},
    {"tiny_aya cohere2moe", {R"(\d{1,3}(?=(?:\d{3})*\b))", kO200k}},
    {"poro-chat bloom gpt3-finnish", {kBloom}},
    {"viking", {kBloom, kDigit}},
    {"default", {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2, R"(\p{N}+)", kThreeAscii}}};

#undef MOEBIUS_TAIL
#undef MOEBIUS_SHORT
#undef MOEBIUS_UPPER
#undef MOEBIUS_LOWER
#undef MOEBIUS_HAN_UPPER
#undef MOEBIUS_HAN_LOWER
#undef MOEBIUS_CASED
#undef MOEBIUS_WORDS

}  // namespace

const PreTokenizerRule* find_pre_tokenizer(std::string_view name) {
  for (const PreTokenizerRule& rule : kRules)
    for (std::string_view left = rule.names; !left.empty();) {
      const std::string_view next = left.substr(0, left.find(' '));
      if (next == name) return &rule;
      left.remove_prefix(next.size() == left.size() ? left.size() : next.size() + 1);
    }
  return nullptr;
}

}  // namespace moebius
