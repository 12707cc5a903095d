#!/usr/bin/env bash
# Two robots at once on one GPU: trains them for some minutes, lets testers try them there and on the CPU, and packs all
# but the state of the worlds, with which a later run goes on learning. Curves, tables and weights go to $OUT.
#
#     OUT=/tmp/out TRAIN_S=430 bash benchmarks/robots_h200.sh quadruped_rough_ppo biped_pm01_flat_ppo
#
# Further on another machine: unpack OUT/NAME.tar.gz and
#     lab train +experiment=NAME training.resume_path=NAME/weights/000001 training.resume_mode=warm_start_optimizer ...
set -u
OUT=${OUT:?a directory for results} TRAIN_S=${TRAIN_S:-430} ROOT=${ROOT:-/tmp/robots}
export OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
lab() { python3 -m rl_lab.cli "$@"; }
mkdir -p "$OUT" "$ROOT"
nvidia-cuda-mps-control -d || echo "no MPS: the two take turns"

one() {
  local name=$1 run=$ROOT/$1 start=()
  [ -d "$ROOT/from/$name/weights/000001" ] && start=(training.resume_path="$ROOT/from/$name/weights/000001" training.resume_mode=warm_start_optimizer)
  timeout -s TERM "$TRAIN_S" python3 -m rl_lab.cli train "+experiment=$name" --run-dir "$run" "${start[@]}" \
    experiment.device=cuda experiment.precision=tf32 training.eval_frequency=null training.keep_last=1 \
    training.checkpoint_frequency=19_660_800 logging.terminal=false logging.every_steps=983_040 > "$OUT/$name.log" 2>&1
  tail -n 2 "$OUT/$name.log"
  lab play "$run" --testers all --num-envs 256 --test-length 400 > "$OUT/$name.gpu.txt" 2>&1
  cp "$run/test/summary.csv" "$run/testers_gpu.csv"
  lab play "$run" --testers all --num-envs 64 --test-length 400 --device cpu > "$OUT/$name.cpu.txt" 2>&1
  cp "$run/test/summary.csv" "$run/testers_cpu.csv"
  python3 - "$run" <<'PYTHON'
import sys
from pathlib import Path

from rl_lab.tracking.checkpoint import CheckpointStore

run = Path(sys.argv[1])
loaded = CheckpointStore(run / "checkpoints").load_newest()
kept = {key: loaded.state[key] for key in ("workflow", "workflow_state", "optimizers", "counters")}
CheckpointStore(run / "weights").save(kept, counters=loaded.manifest["counters"], phase=loaded.manifest["phase"])
print(run.name, loaded.manifest["counters"])
PYTHON
  tar -C "$ROOT" --exclude="$name/checkpoints" --exclude="$name/tb" --exclude="$name/*.chain" -czf "$OUT/$name.tar.gz" "$name"
}

for name in "$@"; do one "$name" & done
wait
cat "$OUT"/*.gpu.txt "$OUT"/*.cpu.txt
