"""What the machine offers: GPUs, driver, CUDA libraries (of the system or of a Python environment), tools."""

import ctypes
import glob
import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

LIBRARIES = ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libnccl.so.2")


def library_folders():
    """Folders that may hold the CUDA libraries, best first."""
    folders = []
    for root in [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda", "/usr/local/cuda-13"]:
        if root:
            folders += [root + "/lib64", root + "/lib", root + "/targets/x86_64-linux/lib"]
    packages = list(getattr(site, "getsitepackages", lambda: [])()) + [site.getusersitepackages()] + sys.path
    for package in packages:
        folders += sorted(glob.glob(f"{package}/nvidia/*/lib"))
    folders += ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib"]
    return [folder for folder in dict.fromkeys(folders) if os.path.isdir(folder)]


def find_libraries():
    """{library: path or None}."""
    found = {}
    for library in LIBRARIES:
        candidates = [f"{folder}/{library}" for folder in library_folders()]
        found[library] = next((path for path in candidates if os.path.exists(path)), None)
    return found


def _version(path, function, *arguments):
    try:
        value = ctypes.c_int()
        code = getattr(ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL), function)(*arguments, ctypes.byref(value))
        return value.value if code == 0 else None
    except (OSError, AttributeError):
        return None


def library_versions(found):
    """Versions as the libraries tell them; run in a process of its own, since it loads them."""
    code = ("import ctypes, json, sys; sys.path.insert(0, sys.argv[1]); import machine; "
            "f = json.loads(sys.argv[2]); v = machine._version; "
            "p = [f[k] for k in machine.LIBRARIES]; "
            "p[2] and ctypes.CDLL(p[2], mode=ctypes.RTLD_GLOBAL); "
            "print(json.dumps({'cudart': p[0] and v(p[0], 'cudaRuntimeGetVersion'), "
            "'cublas': p[1] and v(p[1], 'cublasGetVersion_v2', None), "
            "'nccl': p[3] and v(p[3], 'ncclGetVersion')}))")
    import json
    done = subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent), json.dumps(found)],
                          capture_output=True, text=True, timeout=60)
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"error": done.stderr.strip()[-300:]}


def driver():
    """(loaded, CUDA version of the driver or None)."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False, None
    version = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return False, None
    return True, version.value


def gpus():
    """One dict a GPU, as nvidia-smi tells; empty where it is missing."""
    tool = shutil.which("nvidia-smi")
    if not tool:
        return []
    fields = "name,compute_cap,memory.total,driver_version"
    done = subprocess.run([tool, f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
                          capture_output=True, text=True, timeout=60)
    return [dict(zip(fields.split(","), [word.strip() for word in line.split(",")]))
            for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def compute_sanitizer():
    """Path of compute-sanitizer or None."""
    places = [shutil.which("compute-sanitizer")]
    for root in [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]:
        if root:
            places += [f"{root}/bin/compute-sanitizer", f"{root}/compute-sanitizer/compute-sanitizer"]
    return next((place for place in places if place and os.access(place, os.X_OK)), None)
