#include "measure/model_identity.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"

namespace carpool {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kPiece = 64 << 10, kPieces = 64;

// Size and pieces of one file, and what came before it.
uint64_t add_file(uint64_t hash, const fs::path& path) {
  std::error_code code;
  const uint64_t size = fs::file_size(path, code);
  std::ifstream in(path, std::ios::binary);
  if (code || !in) throw Error(ErrorKind::kMissing, fmt::format("{}: cannot be read", escape(path.string(), 400)));
  std::vector<char> piece(kPiece);
  std::string sums = fmt::format("{:016x} {}", hash, size);
  const uint64_t pieces = std::min((size + kPiece - 1) / kPiece, kPieces);
  for (uint64_t i = 0; i < pieces; ++i) {
    const uint64_t last = size > kPiece ? size - kPiece : 0;
    const uint64_t at = pieces < kPieces ? i * kPiece : last * i / (kPieces - 1);
    const uint64_t n = std::min(kPiece, size - at);
    in.seekg(static_cast<std::streamoff>(at));
    in.read(piece.data(), static_cast<std::streamsize>(n));
    if (static_cast<uint64_t>(in.gcount()) != n)
      throw Error(ErrorKind::kIo, fmt::format("{}: cannot be read", escape(path.string(), 400)));
    sums += fmt::format(" {:016x}", checksum64(std::string_view(piece.data(), n)));
  }
  return checksum64(sums);
}

}  // namespace

std::string model_hash(const std::string& model) {
  if (model.starts_with("dummy:")) return fmt::format("{:016x}", checksum64(model));
  std::error_code code;
  std::vector<fs::path> files;
  if (!fs::is_directory(model, code)) {
    files.emplace_back(model);
  } else {
    for (auto it = fs::directory_iterator(model, code); !code && it != fs::directory_iterator(); it.increment(code)) {
      const std::string name = it->path().filename().string();
      const bool part = name == "config.json" || name == "tokenizer.json" || name == "tiktoken.model" ||
                        name.ends_with(".safetensors");
      if (part) files.push_back(it->path());
    }
    std::sort(files.begin(), files.end());
  }
  if (code || files.empty()) throw Error(ErrorKind::kMissing, fmt::format("{}: no such model", escape(model, 400)));
  uint64_t hash = 0;
  for (const fs::path& file : files) hash = add_file(hash, file);
  return fmt::format("{:016x}", hash);
}

}  // namespace carpool
