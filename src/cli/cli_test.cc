// The frame around every command: what a file that shrinks under its mapping does to the process.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cli/commands.h"
#include "io/mapped_file.h"

namespace carpool {
namespace {

// Reads a page of a mapping whose file no longer reaches there.
void read_behind_the_end(const std::string& path) {
  install_bus_handler();
  const MappedFile file = MappedFile::open(path);
  std::filesystem::resize_file(path, 0);
  const volatile std::byte* data = file.bytes().data();
  static_cast<void>(data[file.bytes().size() - 1]);
}

TEST(BusHandlerDeathTest, AMappedFileThatBecameShorterEndsWithASentenceAndExitCode74) {
  char name[] = "/tmp/carpool_bus_XXXXXX";
  const int fd = ::mkstemp(name);
  ASSERT_GE(fd, 0);
  ::close(fd);
  std::ofstream(name) << std::string(20'000, 'x');
  EXPECT_EXIT(read_behind_the_end(name), testing::ExitedWithCode(74),
              "^error: a mapped model file became shorter or unreadable \\(exit 74\\)\n$");
  ::unlink(name);
}

TEST(BusHandlerDeathTest, ASignalThatSomebodySentStillKills) {
  EXPECT_EXIT(
      {
        install_bus_handler();
        ::raise(SIGBUS);
      },
      testing::KilledBySignal(SIGBUS), "^$");
}

}  // namespace
}  // namespace carpool
