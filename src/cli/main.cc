// Entry point of the carpool binary; see cli/commands.h.
#include "cli/commands.h"

int main(int argc, char** argv) { return carpool::run_cli(argc, argv); }
