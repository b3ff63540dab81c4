#!/usr/bin/env python3
"""Checks the house rules that a machine can check.

Sizes (functions at most 100 lines, files at most 800), ASCII, words that must not be in the repository, pipes that fail
by chance, types of one name in one namespace (which a linker merges without a word), clocks that jump, that every test
which docs/reliability.md names exists, and, given the binary, that every long option of every command appears in a test. Prints every violation as file:line and exits 1.
Does not judge names, comments or layers (check_layers.py).

    tools/check_repository.py [BINARY]      check this repository
    tools/check_repository.py --self-test   check that violations of every kind are found
"""

import ast
import re
import subprocess
import sys
import tempfile
from pathlib import Path

MAX_FUNCTION, MAX_FILE = 100, 800
CODE_FOLDERS = ("src", "include", "tests", "python", "tools", "bench", "cmake", "examples", "packaging", ".ci")
CODE = {".h", ".cc", ".def", ".py", ".sh", ".cmake", ".md", ".txt", ""}
SKIPPED = {"golden", "data", "__pycache__", "build", ".venv"}  # folders whose files are not written by hand
# Spelled in parts, so that this file passes its own check.
WORDS = re.compile("|".join([r"\bTO" r"DO\b", r"\bFIX" r"ME\b", r"\bXX" r"X\b", r"\bHA" r"CK\b",
                             r"(?<![\w.}])/wo" r"rk/", r"(?<![\w.}])/ro" r"ot/"]))
# A reader that leaves before its pipe ends: the writer may die of SIGPIPE, and under pipefail that is a failure, by chance.
LEAVES_EARLY = re.compile(r"(?<!\|)\|\s*(?:grep\s(?:[^|;]*\s)?(?:-[a-zA-Z]*[qm]|--quiet|--max-count)|head\b)")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
COMMON_FLAGS = {"--help", "--version"}
# Clocks that an administrator or NTP may set while a program runs, so that no duration and no deadline may be of them.
WALL_CLOCK = re.compile(r"\b(?:system_clock|file_clock|utc_clock|high_resolution_clock|system_timer|deadline_timer|CLOCK_REALTIME\w*"
                        r"|CLOCK_TAI|gettimeofday|timespec_get)\b|(?<![\w.>])time\s*\(\s*(?:nullptr|NULL|0|&\s*\w+)\s*\)")
# Where a time of day is what is wanted, once per file.
TIMES_OF_DAY = {
    "src/cli/run.cc": "the date that a chat template may show",
    "src/server/chat.cc": "the same",
    "src/server/generation.cc": "`created` of an answer",
    "src/server/http_session.cc": "the Date header",
    "src/server/log.cc": "the time of a line",
    "src/server/service.cc": "`created` of the model",
}


def hand_written(root):
    """Every text file that somebody wrote: the code folders and the files at the top."""
    files = [p for p in root.iterdir() if p.is_file() and p.name not in ("LICENSE", ".gitignore")]
    for folder in CODE_FOLDERS:
        files += [p for p in (root / folder).rglob("*") if p.is_file()]
    files += (root / "models").rglob("*.md")  # what else lies there is not written by hand
    return sorted(p for p in files if p.suffix in CODE and not SKIPPED & set(p.relative_to(root).parts))


def without_text(source):
    """C++ with comments, strings and characters blanked, so that braces count; lines keep their numbers."""
    pattern = r'R"(\w*)\((?:.|\n)*?\)\1"|//[^\n]*|/\*(?:.|\n)*?\*/|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\''
    return re.sub(pattern, lambda m: "\n" * m.group(0).count("\n"), source)


def cpp_functions(source):
    """(first line, last line) of every function body: braces opened after a ')' outside of another function."""
    line, stack, start, head = 1, [], None, ""
    for c in without_text(source):
        if c == "\n":
            line += 1
        if c == "{":
            opens = start is None and re.search(r"\)[^;{}=]*$", head) and not re.search(r"\b(namespace|class|struct)\b|\bextern\s*$", head)
            if opens:
                start = (len(stack), line)
            stack.append(c)
            head = ""
        elif c == "}":
            if stack:
                stack.pop()
            if start and start[0] == len(stack):
                yield start[1], line
                start = None
            head = ""
        elif c == ";":
            head = ""
        else:
            head += c


def shared_types(source):
    """(line, qualified name) of every type defined in a namespace that other files can name."""
    line, stack, head = 1, [], ""
    for c in without_text(source):
        if c == "\n":
            line += 1
        if c == "{":
            space = re.search(r"\bnamespace\s+([\w:]+)\s*$", head)
            kind = re.search(r"\b(?:struct|class|enum(?: class| struct)?)\s+(?:alignas\([^)]*\)\s*)?(\w+)(?:\s+final)?"
                             r"\s*(?::(?!:)[^;{}()]*)?$", head)
            if kind and None not in stack and not re.search(r"\btemplate\s*<>", head):
                yield line, "::".join([*stack, kind.group(1)])
            stack.append(space.group(1) if space else None)
            head = ""
        elif c == "}":
            if stack:
                stack.pop()
            head = ""
        elif c == ";":
            head = ""
        else:
            head += c


def check_types(root):
    """Types of one name, of files that can meet in one program. Files of tests meet only those of their own folder."""
    found, seen = [], {}
    for path in hand_written(root):
        if path.suffix not in (".h", ".cc") or path.name.endswith(".inl.h") or "src" not in path.relative_to(root).parts:
            continue
        test = "test" in path.name
        for line, name in shared_types(path.read_text(encoding="utf-8")):
            for other, other_test in seen.setdefault(name, []):
                if other != path and (not (test or other_test) or other.parent == path.parent):
                    found.append(f"{path}:{line}: {other} has a type {name}, too, and the linker takes one for the other")
            seen[name].append((path, test))
    return found


def check_named_tests(root):
    """Tests, as `Suite.Name`, that docs/reliability.md names and no source defines."""
    page, defined = root / "docs" / "reliability.md", set()
    if not page.exists():
        return []
    for folder in ("src", "tests"):
        for path in (root / folder).rglob("*.cc"):
            source = path.read_text(encoding="utf-8")
            defined |= {f"{suite}.{name}" for suite, name in re.findall(r"(?m)^TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)", source)}
    return [f"{page}:{number}: no test is named {name}"
            for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
            for name in re.findall(r"`([A-Z]\w*\.[A-Z]\w*)`", line) if name not in defined]


def check_clocks(root):
    """Uses of the wall clock in src and include beyond TIMES_OF_DAY, and entries of that list that nothing uses."""
    found = []
    for path in hand_written(root):
        name = str(path.relative_to(root))
        if path.suffix not in (".h", ".cc", ".def") or not name.startswith(("src/", "include/")):
            continue
        source = without_text(path.read_text(encoding="utf-8"))
        lines = [number for number, line in enumerate(source.splitlines(), 1) for _ in WALL_CLOCK.finditer(line)]
        allowed = 1 if name in TIMES_OF_DAY else 0
        found += [f"{path}:{number}: a clock that jumps; durations and deadlines are of base/time.h or steady_clock"
                  for number in lines[allowed:]]
        if len(lines) < allowed:
            found.append(f"{path}:1: no clock is read here for {TIMES_OF_DAY[name]}, as TIMES_OF_DAY says")
    return found


def python_functions(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno


def problems_of(path, text):
    """(line, sentence) of everything wrong with one file."""
    code = path.suffix in (".h", ".cc", ".py")
    lines = text.splitlines()
    pipefail = path.suffix in (".sh", "") and "\nset -euo pipefail\n" in text
    if code and len(lines) > MAX_FILE:
        yield len(lines), f"{len(lines)} lines, at most {MAX_FILE}"
    for number, line in enumerate(lines, 1):
        if path.suffix != ".md" and not line.isascii():
            yield number, "not ASCII"
        found = WORDS.search(line)
        if found:
            yield number, f"forbidden: {found.group(0)}"
        if pipefail and LEAVES_EARLY.search(line):
            yield number, "a reader that may leave before its pipe ends, under pipefail: capture the output first"
    functions = python_functions if path.suffix == ".py" else cpp_functions if code else lambda _: ()
    for first, last in functions(text):
        if last - first + 1 > MAX_FUNCTION:
            yield first, f"a function of {last - first + 1} lines, at most {MAX_FUNCTION}"


def check_files(root):
    found = []
    for path in hand_written(root):
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            found.append(f"{path}:1: not UTF-8")
            continue
        found += [f"{path}:{number}: {what}" for number, what in problems_of(path, text)]
    return found


def help_of(binary, words):
    return subprocess.run([binary, *words, "--help"], capture_output=True, text=True, timeout=60, check=True).stdout


def commands_of(text):
    """Names in the list of subcommands of a help text."""
    part = re.split(r"(?mi)^subcommands:\s*$", text)
    return re.findall(r"(?m)^  ([a-z][a-z-]*)\b", part[1]) if len(part) > 1 else []


def flags_of(binary, words=()):
    text = help_of(binary, words)
    flags = {(" ".join(words), flag) for line in text.splitlines() if line.lstrip().startswith("-")
             for flag in FLAG.findall(line.split("  ")[1] if line.startswith("  ") else line)}
    for command in commands_of(text):
        flags |= flags_of(binary, (*words, command))
    return flags


def check_flags(root, binary):
    """Long options that no test mentions."""
    tests = [p for p in (root / "src").rglob("*_test.cc")]
    tests += [p for p in (root / "tests").rglob("*") if p.suffix in (".cc", ".py", ".sh", ".cmake", ".txt", "")
              and p.is_file() and not SKIPPED & set(p.relative_to(root).parts)]
    tested = set()
    for path in tests:
        tested |= set(FLAG.findall(path.read_text(encoding="utf-8", errors="replace")))
    return [f"{root / 'tests'}:1: no test mentions {flag} of carpool {command}".rstrip()
            for command, flag in sorted(flags_of(binary)) if flag not in tested | COMMON_FLAGS]


def self_test():
    """Makes small repositories with one violation each; exits 1 where one is missed or invented."""
    body = "  x();\n"
    long_cpp = "namespace a {\nint f(int x) {\n" + body * 99 + "}\n}\n"
    cases = [
        ("src/a.cc", "namespace a {\nint f(int x) {\n" + body * 98 + "}\n}\n", None),
        ("src/a.cc", long_cpp, "a.cc:2: a function of 101 lines"),
        ("src/a.cc", "struct A {\n" + "  int f() { return 1; }\n" * 200 + "};\n", None),
        ("src/a.h", 'int f(int);\n#define A B(x)\nextern "C" {\n' + "int x;\n" * 200 + "}\n", None),
        ("src/a.cc", "// }{ (){\n" + 'const char* s = ") {";\n' * 150, None),
        ("src/a.cc", "int x;\n" * 801, "a.cc:801: 801 lines"),
        ("python/a.py", "def f():\n" + "    x = 1\n" * 100, "a.py:1: a function of 101 lines"),
        ("src/a.h", "// caf\u00e9\n", "a.h:1: not ASCII"),
        ("tools/a.sh", "cd /wo" "rk/main\n", "a.sh:1: forbidden"),
        ("src/a.h", "// TO" "DO: later\n", "a.h:1: forbidden"),
        ("src/a.h", "// a network/ro" "ot/path is fine\n", None),
        ("tools/a.sh", "#!/bin/bash\nset -euo pipefail\nnm a | grep -vq b\n", "a.sh:3: a reader"),
        ("tools/a", "#!/bin/bash\nset -euo pipefail\na | grep -i --quiet b\n", "a:3: a reader"),
        ("tools/a.sh", "#!/bin/bash\nset -euo pipefail\na | head -n 1\n", "a.sh:3: a reader"),
        ("tools/a.sh", "#!/bin/bash\nset -euo pipefail\na || grep -q b c\ngrep -q b c\na | grep -v b | tail -n 1\n", None),
        ("tools/a.sh", "#!/bin/sh\nset -eu\na | grep -q b\n", None),
        ("models/a/README.md", "from /wo" "rk/train\n", "README.md:1: forbidden"),
        ("models/a/eval.txt", "TO" "DO\n", None),
        ("python/notes.txt", "TO" "DO\n", "notes.txt:1: forbidden"),
        ("tests/golden/a.txt", "TO" "DO \u00e9\n", None),
    ]
    for name, text, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.parent.mkdir(parents=True)
            path.write_text(text, encoding="utf-8")
            found = check_files(Path(folder))
        if (not found) if expected is None else (len(found) == 1 and expected in found[0]):
            continue
        sys.exit(f"self-test: {name}: expected {expected}, found {found}")
    types = "namespace a {\nnamespace {\nstruct Own { int x; };\n}\nenum class E { k };\nstruct A final : B<int> {\n  struct Own {};\n};\n}\n"
    assert list(shared_types(types)) == [(5, "a::E"), (6, "a::A")], list(shared_types(types))
    for names, expected in ((("src/a/x.h", "src/b/y.cc"), 2), (("src/a/x.h", "src/b/y_test.cc"), 0), (("src/a/x_test.cc", "src/a/y.h"), 2)):
        with tempfile.TemporaryDirectory() as folder:
            for name in names:
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / name).write_text(types, encoding="utf-8")
            assert len(check_types(Path(folder))) == expected, names
    tests = "TEST(A, B) {}\nTEST_F(\n    A, C) {}\nTEST_P(D, E) {}\n// TEST(A, Gone)\n"
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (("src/a/x_test.cc", tests), ("tests/y_test.cc", "TEST(F, G) {}\n"),
                              ("docs/reliability.md", "`A.B`, `A.C`\n`D.E` `F.G` `server.md` A.H\n`A.Gone`, `A.B`, `A.H`\n")):
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).write_text(content, encoding="utf-8")
        found = check_named_tests(Path(folder))
    assert [f.split("reliability.md:")[1] for f in found] == ["3: no test is named A.Gone", "3: no test is named A.H"], found
    once, twice = "// system_clock\nauto t = std::time(nullptr);\n", "auto t = std::time( NULL );\nauto u = system_clock::now();\n"
    for name, content, expected in (("src/server/log.cc", once, []), ("src/server/log.cc", twice, ["2"]), ("src/server/log.cc", "", ["1"]),
                                    ("src/a.cc", once, ["2"]), ("src/a.h", twice, ["1", "2"]), ("tests/a.cc", twice, []),
                                    ("src/a.cc", 'f("time(0)"); x.time(0); run_time(0); now_seconds(); steady_clock::now();\n', []),
                                    ("src/a.cc", "clock_gettime(CLOCK_REALTIME, &t);\nasio::system_timer t(io);\n", ["1", "2"])):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / name).parent.mkdir(parents=True)
            (Path(folder) / name).write_text(content, encoding="utf-8")
            found = check_clocks(Path(folder))
        assert [f.split(":")[1] for f in found] == expected, (name, content, found)
    text = "Usage: x\n\nSubcommands:\n  run                 generate\n  ab                  compare\n"
    assert commands_of(text) == ["run", "ab"], commands_of(text)
    print(f"check_repository: self-test OK ({len(cases)} trees)")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = Path(__file__).resolve().parent.parent
    found = check_files(root) + check_types(root) + check_clocks(root) + check_named_tests(root)
    if len(sys.argv) > 1:
        found += check_flags(root, sys.argv[1])
    if found:
        print("\n".join(found))
        sys.exit(1)
    print("check_repository: OK" + ("" if len(sys.argv) > 1 else " (options not checked: no binary given)"))


if __name__ == "__main__":
    main()
