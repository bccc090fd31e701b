#!/usr/bin/env bash
# Trains the demo model from the corpora to models/demo. Interrupted? Run the same command again.
set -euo pipefail

usage() {
  cat <<'TEXT'
usage: tools/train/run.sh CORPUS_DIR [WORK_DIR] [option...]
  CORPUS_DIR  holds tinystories_train.txt, tinystories_valid.txt, synthetic_stories.txt and
              fairytales_pd.txt (tools/train/README.md says where they come from)
  WORK_DIR    checkpoints, logs and the distillation pool (default ~/brigade_train, about 2.5 GB
              of memory while the draft trains); keep it outside the repository
options
  --minutes N        target training time (default 100)
  --draft-minutes N  draft training time (default 8)
  --core N           pin everything to this core (default: not pinned)
  --out DIR          where to export (default WORK_DIR/demo; copy it to models/demo if better)
Python: $PYTHON (default python3) with torch, numpy and regex; the last check uses transformers and
tokenizers if they are there. C compiler: gcc with libmvec.
TEXT
}

minutes=100 draft_minutes=8 core="" out="" positional=()
while [ $# -gt 0 ]; do
  case "$1" in
    --minutes) minutes=$2; shift 2 ;;
    --draft-minutes) draft_minutes=$2; shift 2 ;;
    --core) core=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    -*) echo "run.sh: unknown option $1" >&2; usage >&2; exit 2 ;;
    *) positional+=("$1"); shift ;;
  esac
done
if [ ${#positional[@]} -lt 1 ] || [ ${#positional[@]} -gt 2 ]; then usage >&2; exit 2; fi
corpus=${positional[0]}
work=${positional[1]:-$HOME/brigade_train}
out=${out:-$work/demo}
for name in tinystories_train tinystories_valid synthetic_stories fairytales_pd; do
  if [ ! -r "$corpus/$name.txt" ]; then
    echo "run.sh: cannot read $corpus/$name.txt" >&2
    exit 2
  fi
done

here=$(cd "$(dirname "$0")" && pwd)
python=(${PYTHON:-python3} -u)
[ -z "$core" ] || python=(taskset -c "$core" "${python[@]}")
# One thread: the matrices are small. Large malloc thresholds keep buffers from being unmapped.
export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
export MALLOC_MMAP_THRESHOLD_=30000000 MALLOC_TRIM_THRESHOLD_=8000000000
export MALLOC_TOP_PAD_=268435456

mkdir -p "$work/target" "$work/draft" "$out"
tokenizer=$work/tokenizer.json
"${python[@]}" "$here/check_gradients.py"
[ -s "$tokenizer" ] || "${python[@]}" "$here/bpe.py" "$corpus" "$tokenizer"
"${python[@]}" "$here/train_target.py" "$corpus" "$tokenizer" "$work/target" --minutes "$minutes"
"${python[@]}" "$here/train_draft.py" "$corpus" "$tokenizer" "$work/target/weights.pt" \
  "$work/draft" --minutes "$draft_minutes"
for model in target draft; do
  "${python[@]}" "$here/export.py" "$work/$model/weights.pt" "$tokenizer" "$out/$model"
done
"${python[@]}" "$here/check_export.py" "$out" "$work/target/weights.pt" "$work/draft/weights.pt" \
  --write-golden
"${python[@]}" "$here/evaluate.py" "$corpus" "$tokenizer" "$work/target/weights.pt" \
  --draft-out "$work/draft" | tee "$work/report.md"
