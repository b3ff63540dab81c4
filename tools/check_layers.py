#!/usr/bin/env python3
"""Checks who includes whom in src/.

A folder may include folders of lower rank and itself, never a sibling of its own rank; kernels/ is seen by backend/
alone, capi/ sees base/ and routing/ alone. Prints every violation as file:line and exits 1. The same table is in
ARCHITECTURE.md and, as link dependencies, in the CMake files. Does not look at includes in angle brackets.

    tools/check_layers.py [SRC]        check a tree (default: src/ beside this folder)
    tools/check_layers.py --self-test  check that violations of every kind are found
"""

import re
import sys
import tempfile
from pathlib import Path

RANKS = {
    "base": 0,
    "tensor": 1, "routing": 1,
    "io": 2, "kernels": 2, "capi": 2,
    "text": 3, "backend": 3,
    "model": 4, "grammar": 4,
    "engine": 5,
    "measure": 6, "server": 6,
    "cli": 7,
}
ONLY_FOR = {"kernels": {"backend"}, "capi": set()}  # folder -> the only other folders that may include it
SEES_ONLY = {"capi": {"base", "routing"}}  # folder -> the only other folders that it may include
GENERATED = {"build_info.h"}  # written by the build, so absent from the tree
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
SOURCES = {".h", ".cc", ".def"}


def problem_of(src, file, target):
    """Why `file` must not include `target`, or None."""
    folder = file.relative_to(src).parts[0]
    if target in GENERATED:
        return None
    if not (src / target).is_file():
        return f'no such file in {src.name}/: "{target}"'
    seen = Path(target).parts[0]
    if seen == folder:
        return None
    if seen not in RANKS:
        return None  # reported once, as a folder
    if seen in ONLY_FOR and folder not in ONLY_FOR[seen]:
        who = f'only {", ".join(sorted(ONLY_FOR[seen]))}/ sees' if ONLY_FOR[seen] else "nobody sees"
        return f'{folder}/ may not include "{target}": {who} {seen}/'
    if seen not in SEES_ONLY.get(folder, {seen}):
        return f'{folder}/ may not include "{target}": it sees only {", ".join(sorted(SEES_ONLY[folder]))}/'
    if RANKS[seen] >= RANKS[folder]:
        return f'{folder}/ (rank {RANKS[folder]}) may not include "{target}" (rank {RANKS[seen]})'
    return None


def check(src):
    """All violations below `src`, as lines of text."""
    found = []
    for folder in sorted(p for p in src.iterdir() if p.is_dir()):
        if folder.name not in RANKS:
            found.append(f"{folder}: this folder is not in the table of {Path(__file__).name}")
            continue
        for file in sorted(p for p in folder.rglob("*") if p.suffix in SOURCES):
            for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
                match = INCLUDE.match(line)
                problem = problem_of(src, file, match.group(1)) if match else None
                if problem:
                    found.append(f"{file}:{number}: {problem}")
    return found


def self_test():
    """Builds trees with one violation each and looks for it; exits 1 where one is missed or invented."""
    good = {
        "base/error.h": "", "tensor/format.h": '#include "base/error.h"\n', "routing/types.h": "",
        "kernels/kernels.h": '#include "tensor/format.h"\n', "model/config.h": '#include "routing/types.h"\n',
        "capi/router.cc": '#include <carpool/routing.h>\n#include "routing/types.h"\n',
        "backend/cpu/ops.cc": '#include <vector>\n#include "kernels/kernels.h"\n',
    }
    cases = [
        ({}, None),
        ({"base/bad.cc": '#include "tensor/format.h"\n'}, "base/bad.cc:1: base/ (rank 0)"),
        ({"routing/bad.cc": '\n#include "tensor/format.h"\n'}, "routing/bad.cc:2: routing/ (rank 1)"),
        ({"model/bad.cc": '  #  include "kernels/kernels.h"\n'}, "only backend/ sees kernels/"),
        ({"capi/bad.cc": '#include "tensor/format.h"\n'}, "it sees only base, routing/"),
        ({"capi/a.h": "", "cli/bad.cc": '#include "capi/a.h"\n'}, "nobody sees capi/"),
        ({"model/bad.cc": '#include "model/absent.h"\n'}, 'no such file in src/: "model/absent.h"'),
        ({"model/bad.cc": '#include "config.h"\n'}, 'no such file in src/: "config.h"'),
        ({"extra/a.h": ""}, "extra: this folder is not in the table"),
    ]
    for files, expected in cases:
        with tempfile.TemporaryDirectory() as root:
            src = Path(root) / "src"
            for name, text in {**good, **files}.items():
                (src / name).parent.mkdir(parents=True, exist_ok=True)
                (src / name).write_text(text)
            found = check(src)
            if (not found) if expected is None else (len(found) == 1 and expected in found[0]):
                continue
            sys.exit(f"self-test: expected {expected}, found {found}")
    print(f"check_layers: self-test OK ({len(cases)} trees)")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    src = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent / "src"
    if not src.is_dir():
        sys.exit(f"{src}: no such folder")
    found = check(src)
    if found:
        print("\n".join(found))
        sys.exit(1)
    print("check_layers: OK")


if __name__ == "__main__":
    main()
