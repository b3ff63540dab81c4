#!/bin/sh
# check_objects.sh ARCHIVE: the objects of one instruction set may offer the linker nothing but their table.
#
# A weak symbol there would be a shared inline function compiled with that set's flags, which the linker may keep for
# the whole program; an external function could be called without asking the processor first.
set -eu
symbols=$(nm -A "$1" | grep -E ':(avx2|avx512)\.cc\.o:')
tables=$(printf '%s\n' "$symbols" | grep -c -E ' [RDB] _ZN7carpool[0-9]+k(Avx2|Avx512)KernelsE$' || true)
if [ "$tables" != 2 ]; then
  echo "expected the tables of avx2 and avx512 in $1, found $tables"
  exit 1
fi
if nm "$1" | grep -i emulat; then
  echo "emulated code in $1: it is for a test program alone"
  exit 1
fi
# DW.ref. names are pointers to the language runtime that some builds add, the same in every object.
shared=$(printf '%s\n' "$symbols" | grep -E ' [TWVuiC] ' | grep -v ' DW\.ref\.' || true)
if [ -n "$shared" ]; then
  echo "functions that other code could be given:"
  printf '%s\n' "$shared"
  exit 1
fi
