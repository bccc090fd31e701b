#!/usr/bin/env bash
# Packs what a machine with a GPU needs, beside the source tree, to check Brigade there: programs, CUDA
# module, checks, and the small libraries that they load. CUDA, cuBLAS, NCCL and the driver are that
# machine's; the demo model is the tree's.
#
#   tools/device_check/make_bundle.sh [OUT.tar.xz]      (default: build/device_check.tar.xz)
#
# Then, on the other machine:  tar xf device_check.tar.xz && device_check/device_check.py   (in the source tree)
set -euo pipefail
cd "$(dirname "$0")/../.."

out=${1:-build/device_check.tar.xz}
limit=$((20 * 1024 * 1024))
programs=(brigade brigade-coordinator brigade-expert-worker brigade-draft-worker cuda_device_parity cuda_bench)

cmake --preset cuda >/dev/null
cmake --build --preset cuda --target brigade_cuda "${programs[@]}" -- -j "${BRIGADE_JOBS:-2}"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=$work/device_check
mkdir -p "$folder/bin" "$folder/lib"
for program in "${programs[@]}" brigade_cuda.so; do
  cp "build/cuda/bin/$program" "$folder/bin/"
  strip "$folder/bin/$program"
done
cp tools/device_check/{device_check.py,steps.py,machine.py,nccl_alone.py,README.md} "$folder/"

# Libraries of the programs, without those of CUDA. The C library goes along with its loader: it is used
# where the machine's own is older.
ldd "${programs[@]/#/$folder/bin/}" "$folder/bin/brigade_cuda.so" |
  awk '/=> \//{print $3} /ld-linux/{print $1}' | sort -u |
  grep -Ev 'lib(cuda|cudart|cublas|cublasLt|nccl)\.so' |
  while read -r library; do cp -L "$library" "$folder/lib/"; done

git describe --always --dirty >"$folder/revision"
mkdir -p "$(dirname "$out")"
tar -C "$work" -cf - device_check | xz -T0 -6 >"$out"
size=$(stat -c %s "$out")
echo "$out: $((size / 1024)) KiB"
if [ "$size" -gt "$limit" ]; then
  echo "that is more than $((limit / 1024)) KiB" >&2
  exit 1
fi
