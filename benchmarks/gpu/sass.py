"""Count what CUDA kernels are made of, without a GPU: registers, spills, instructions and those of loops.

    python -m benchmarks.gpu.sass custom_ops/embedding/cuda/embedding.cu [--only LookupBags] [--arch sm_90]

It needs `nvcc`, and `nvdisasm` on the PATH or from `pip install nvidia-cuda-nvdisasm`. A loop is what a
branch backwards closes; an outer loop counts the inner ones.
"""

import argparse
import pathlib
import re
import shutil
import site
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def disassembler():
    """Return the path of nvdisasm."""
    found = shutil.which("nvdisasm")
    for package in [*site.getsitepackages(), site.getusersitepackages()]:
        for path in pathlib.Path(package).glob("nvidia/cu*/bin/nvdisasm"):
            found = found or str(path)
    return found or sys.exit("nvdisasm was not found. Run `pip install nvidia-cuda-nvdisasm`.")


def registers(log):
    """Return `{kernel: (registers, bytes of spills)}` from what `ptxas -v` printed."""
    spills = r"(\d+) bytes spill stores, (\d+) bytes spill loads"
    entry = rf"Compiling entry function '(\w+)'.*?{spills}.*?Used (\d+) reg"
    return {
        name: (int(used), int(stores) + int(loads))
        for name, stores, loads, used in re.findall(entry, log, re.DOTALL)
    }


def loops(listing):
    """Yield the name of each kernel, how many instructions it has, and those of its loops, longest first."""
    kernels = re.findall(r"^\.text\.(\w+):\n(.*?)(?=^\.text\.|\Z)", listing, re.DOTALL | re.MULTILINE)
    line = re.compile(r"^\s*(\.L_\w+):|^\s*/\*[0-9a-f]{4,}\*/\s+(.*?);", re.MULTILINE)
    for name, body in kernels:
        count, labels, found = 0, {}, []
        for label, code in line.findall(body):
            if label:
                labels[label] = count
                continue
            count += 1
            target = re.search(r"BRA.*`\((\.L_\w+)\)", code)
            if target and target[1] in labels:
                found.append(count - labels[target[1]])
        yield name, count, sorted((length for length in found if length > 1), reverse=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=pathlib.Path, help="a .cu file")
    parser.add_argument("--only", default="", metavar="TEXT", help="kernels whose names contain TEXT")
    parser.add_argument("--arch", default="sm_90")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cubin = f"{folder}/kernels.cubin"
        command = ["nvcc", "-std=c++17", "-O3", "-DNDEBUG", f"-arch={options.arch}", f"-I{ROOT}/custom_ops"]
        command += ["-Xptxas", "-v", "-cubin", str(options.source), "-o", cubin]
        log = subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True).stderr
        listing = subprocess.run([disassembler(), "-c", cubin], check=True, stdout=subprocess.PIPE, text=True)
    used = registers(log)
    print(f"{'registers':>9} {'spills':>6} {'instructions':>12}  loops")
    for name, count, lengths in loops(listing.stdout):
        if options.only in name:
            print(f"{used[name][0]:9} {used[name][1]:6} {count:12}  {lengths[:6]}  {name}")


if __name__ == "__main__":
    main()
