// Runs a fuzz target without libFuzzer: on every file of its corpus, then on seeded mutations of them for some seconds.
//
//     fuzz_json FILE-OR-FOLDER... [--seconds S] [--seed N] [--dict FILE]
//
// An input that ends the process (a failed check, a signal, more than 60 s) is written to fuzz-failure-TARGET in the
// working folder, and the exit code is 1. A run of one seed makes the same mutations in the same order, as many as fit.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "fuzz.h"

namespace {

namespace fs = std::filesystem;
constexpr size_t kMaxInput = 64 << 10;
constexpr unsigned kSecondsPerInput = 60;

std::string current, failure_name;  // for the handler

extern "C" void on_signal(int number) {
  const char* what = number == SIGALRM ? "fuzz: an input takes too long; it is in " : "fuzz: the input is in ";
  const int file = ::open(failure_name.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  bool written = file >= 0 && ::write(file, current.data(), current.size()) >= 0;
  written &= ::write(STDERR_FILENO, what, std::strlen(what)) > 0;
  written &= ::write(STDERR_FILENO, failure_name.data(), failure_name.size()) > 0;
  written &= ::write(STDERR_FILENO, "\n", 1) > 0;
  ::_exit(written ? 1 : 2);
}

void run(std::string input) {
  current = std::move(input);
  ::alarm(kSecondsPerInput);
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(current.data()), current.size());
  ::alarm(0);
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    std::fprintf(stderr, "fuzz: %s cannot be read\n", path.c_str());
    std::exit(66);
  }
  return {std::istreambuf_iterator<char>(in), {}};
}

// The words of a dictionary in libFuzzer's form: "..." with \xNN, \\ and \", one a line, a name before them or none.
std::vector<std::string> read_dictionary(const fs::path& path) {
  std::vector<std::string> words;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const size_t from = line.find('"'), to = line.rfind('"');
    if (line.starts_with('#') || from == std::string::npos || to <= from) continue;
    std::string word;
    for (size_t i = from + 1; i < to; ++i) {
      if (line[i] != '\\') {
        word += line[i];
      } else if (line[i + 1] == 'x') {
        word += static_cast<char>(std::stoi(line.substr(i + 2, 2), nullptr, 16));
        i += 3;
      } else {
        word += line[++i];
      }
    }
    words.push_back(word);
  }
  return words;
}

class Mutator {
 public:
  Mutator(std::vector<std::string> seeds, std::vector<std::string> words, unsigned seed)
      : seeds_(std::move(seeds)), words_(std::move(words)), random_(seed) {}

  std::string next() {
    std::string s = pick(seeds_);
    for (size_t n = 1 + below(1 + below(8)); n > 0; --n) mutate(s);
    return s.substr(0, kMaxInput);
  }

 private:
  size_t below(size_t n) { return random_() % n; }
  const std::string& pick(const std::vector<std::string>& from) { return from[below(from.size())]; }
  void mutate(std::string& s) {
    static constexpr char kLikely[] = "\0\x01 \n\r\t\"\\{}[]():;,.-+09aez/<>%|=#\x7f\x80\xbf\xc0\xe2\xed\xf0\xff";
    const size_t at = below(s.size() + 1), left = s.size() - at;
    const size_t some = 1 + below(1 + below(32));
    switch (below(left == 0 ? 4 : 9)) {
      case 0:
        s.insert(at, 1, kLikely[below(sizeof kLikely - 1)]);
        break;
      case 1:
        s.insert(at, words_.empty() ? pick(seeds_).substr(0, some) : pick(words_));
        break;
      case 2: {
        const std::string& other = pick(seeds_);
        s = s.substr(0, at) + other.substr(below(other.size() + 1));
        break;
      }
      case 3:
        s.insert(at, some, kLikely[below(sizeof kLikely - 1)]);
        break;
      case 4:
        s[at] = static_cast<char>(s[at] ^ 1 << below(8));
        break;
      case 5:
        s[at] = static_cast<char>(below(256));
        break;
      case 6:
        s.erase(at, some);
        break;
      case 7:
        s.insert(below(s.size()), s.substr(at, some));
        break;
      default:
        s.replace(at, some, words_.empty() ? std::string(1, kLikely[below(sizeof kLikely - 1)]) : pick(words_));
    }
  }

  std::vector<std::string> seeds_, words_;
  std::mt19937_64 random_;
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<fs::path> files;
  std::vector<std::string> words;
  double seconds = 0;
  unsigned seed = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] { return i + 1 < argc ? std::string(argv[++i]) : std::string("0"); };
    if (word == "--seconds") {
      seconds = std::stod(value());
    } else if (word == "--seed") {
      seed = static_cast<unsigned>(std::stoul(value()));
    } else if (word == "--dict") {
      words = read_dictionary(value());
    } else if (fs::is_directory(word)) {
      for (const auto& entry : fs::directory_iterator(word)) files.push_back(entry.path());
    } else {
      files.push_back(word);
    }
  }
  const std::string target = fs::path(argv[0]).filename().string();
  failure_name = "fuzz-failure-" + target;
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGALRM}) std::signal(number, on_signal);
  std::sort(files.begin(), files.end());
  std::vector<std::string> seeds;
  for (const fs::path& file : files) {
    seeds.push_back(read_file(file));
    run(seeds.back());
  }
  if (seeds.empty()) {
    std::fprintf(stderr, "usage: %s FILE-OR-FOLDER... [--seconds S] [--seed N] [--dict FILE]\n", target.c_str());
    return 64;
  }
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  Mutator mutator(seeds, words, seed);
  long mutations = 0;
  for (; elapsed() < seconds; ++mutations) run(mutator.next());
  std::printf("%s: %zu files and %ld mutations of them in %.1f s, seed %u\n", target.c_str(), seeds.size(), mutations,
              elapsed(), seed);
  return 0;
}
