"""What the machine offers: GPUs, driver, CUDA libraries (of the system or of a Python environment), tools."""

import ctypes
import glob
import json
import os
import re
import shutil
import site
import subprocess
import sys
from pathlib import Path

LIBRARIES = ("libcudart.so.13", "libcublas.so.13", "libcublasLt.so.13", "libnccl.so.2")
# Where Python environments use to lie; the one that runs this script comes first.
ENVIRONMENTS = ("/usr/lib", "/usr/local/lib", "/opt/*/lib", "/opt/*/.venv/lib", "/opt/*/venv/lib", "/venv/lib")
PROBED = re.compile(r"^cuda:(\d+) (.*), compute ([\d.]+), (\d+) MiB$", re.MULTILINE)


def library_folders():
    """Folders that may hold the CUDA libraries, best first."""
    folders = []
    for root in [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda", "/usr/local/cuda-13"]:
        if root:
            folders += [root + "/lib64", root + "/lib", root + "/targets/x86_64-linux/lib"]
    packages = list(getattr(site, "getsitepackages", lambda: [])()) + [site.getusersitepackages()] + sys.path
    for root in [os.environ.get("VIRTUAL_ENV"), os.environ.get("CONDA_PREFIX")]:
        if root:
            folders.append(root + "/lib")
            packages += sorted(glob.glob(f"{root}/lib/python3*/site-packages"))
    for root in ENVIRONMENTS:
        packages += sorted(glob.glob(f"{root}/python3*/*-packages"))
    for package in packages:
        folders += sorted(glob.glob(f"{package}/nvidia/*/lib"))
    folders += os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    folders += ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib"]
    return [folder for folder in dict.fromkeys(folders) if folder and os.path.isdir(folder)]


def driver_folders():
    """Where the driver's own library may lie beside the loader's usual places: containers mount it there."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    folders += ["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib"]
    return [folder for folder in dict.fromkeys(folders) if folder and os.path.isdir(folder)]


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
    try:
        done = subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent), json.dumps(found)],
                              capture_output=True, text=True, timeout=60)
        return json.loads(done.stdout)
    except (ValueError, subprocess.TimeoutExpired) as why:
        return {"error": str(why)[-300:]}


def driver():
    """The driver's version, as nvidia-smi or the driver itself tells it; None where neither is there."""
    tool = shutil.which("nvidia-smi") or shutil.which("/usr/local/nvidia/bin/nvidia-smi")
    if tool:
        try:
            done = subprocess.run([tool, "--query-gpu=driver_version", "--format=csv,noheader"],
                                  capture_output=True, text=True, timeout=60)
            if done.returncode == 0 and done.stdout.strip():
                return done.stdout.split()[0]
        except subprocess.TimeoutExpired:
            pass
    version = ctypes.c_int()
    for place in ["libcuda.so.1"] + [f"{folder}/libcuda.so.1" for folder in driver_folders()]:
        try:
            if ctypes.CDLL(place).cuDriverGetVersion(ctypes.byref(version)) == 0:
                return f"for CUDA {version.value // 1000}.{version.value % 1000 // 10}"
        except OSError:
            continue
    return None


def gpus(probed):
    """One dict a GPU, from what our module says of the machine (cuda_bench --probe)."""
    return [{"name": name, "compute": compute, "memory_mib": int(memory)}
            for _, name, compute, memory in PROBED.findall(probed)]


def compute_sanitizer():
    """Path of compute-sanitizer or None."""
    places = [shutil.which("compute-sanitizer")]
    for root in [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]:
        if root:
            places += [f"{root}/bin/compute-sanitizer", f"{root}/compute-sanitizer/compute-sanitizer"]
    return next((place for place in places if place and os.access(place, os.X_OK)), None)
