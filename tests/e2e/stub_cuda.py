"""Makes PyPI's CUDA build of torch load on a machine without the CUDA libraries.

The dynamic loader wants every library that torch names, and every symbol of it under the right
version. For each such library that is nowhere to be found this puts a small one beside torch's own, in
which every function answers "no device" (cudaErrorNoDevice = 100); torch then reports no CUDA and runs
on the CPU. Needs gcc and readelf.

usage: stub_cuda.py SITE_PACKAGES/torch/lib
"""

import collections
import ctypes
import pathlib
import re
import subprocess
import sys
import tempfile

MARK = b"stand-in made by stub_cuda.py"


def loadable(name):
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def survey(library):
    """Of one library: the libraries it needs, the one behind each symbol version, its undefined (symbol,
    version) pairs, and the symbols it defines."""
    command = ["readelf", "-W", "-d", "-V", "--dyn-syms", library]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", text))
    versions, undefined, defined, provider = {}, set(), set(), None
    for line in text.splitlines():
        if found := re.search(r"Version: 1  File: (\S+)", line):
            provider = found[1]
        elif found := re.search(r"Name: (\S+)  Flags: .*Version: \d+$", line):
            versions[found[1]] = provider
        elif found := re.search(r" (GLOBAL|WEAK) +DEFAULT +(\w+) ([^@\s]+)(?:@+(\S+))?", line):
            binding, section, symbol, version = found.groups()
            if section != "UND":
                defined.add(symbol)
            elif binding == "GLOBAL":
                undefined.add((symbol, version))
    return needed, versions, undefined, defined


def main(folder):
    for library in folder.glob("*.so*"):
        if library.stat().st_size < 1 << 20 and MARK in library.read_bytes():
            library.unlink()
    ours = {library.name for library in folder.glob("*.so*")}
    needed, versions, undefined, defined = set(), {}, set(), set()
    for name in ours:
        parts = survey(folder / name)
        needed |= parts[0]
        versions |= parts[1]
        undefined |= parts[2]
        defined |= parts[3]
    missing = sorted(name for name in needed - ours if not loadable(name))
    if not missing:
        return
    symbols = {name: collections.defaultdict(set) for name in missing}
    for symbol, version in undefined:
        if version is None:
            # Some CUDA libraries have no versions; which of them a symbol is from does not matter to the
            # loader. Python's own symbols are the interpreter's.
            if symbol not in defined and not re.match("_?Py", symbol):
                symbols[missing[0]][None].add(symbol)
        elif versions.get(version) in symbols:
            symbols[versions[version]][version].add(symbol)
    for name, groups in symbols.items():
        # Symbols that the script does not list stay visible, without a version.
        source = f'const char mark[] = "{MARK.decode()}";\nlong no_device(void) {{ return 100; }}\n'
        nodes = ""
        for version, group in groups.items():
            source += "".join(f'long {symbol}(void) __attribute__((alias("no_device")));\n' for symbol in group)
            nodes += f"{version} {{ global: {'; '.join(group)}; }};\n" if version else ""
        with tempfile.TemporaryDirectory() as scratch:
            c, script = pathlib.Path(scratch, "stub.c"), pathlib.Path(scratch, "stub.map")
            c.write_text(source)
            script.write_text(nodes)
            command = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{name}", "-o", folder / name, c]
            subprocess.run(command + ([f"-Wl,--version-script={script}"] if nodes else []), check=True)
        print(name, sum(map(len, groups.values())), "functions")


main(pathlib.Path(sys.argv[1]))
