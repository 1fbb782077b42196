#!/usr/bin/env bash
# The tests that need RDMA, over soft-RoCE: one guest for all rows, then one pair of guests for each
# row of `pairs`. What they run is built beforehand, on this machine, in the folder named.
#
#   tests/softroce/run_tests.sh BUILD_FOLDER [--quick]      (python is the one with malt; see ./dev test --rdma)
#
# --quick leaves out the rows in `long`, which do over the transport what others do too.
# A row passes if its command does, and skips nothing. The status is 0 if every row has passed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=${1:?usage: run_tests.sh BUILD_FOLDER}
readonly limit=1100 nics=4 # seconds for everything; network adapters of the guest

# name|seconds|command, for bash. It may first spoil the network (`impair` below, `ip link`, `tc`): it
# is put in order after every row. A test of RDMA takes rxe1 to rxe4: see bed.sh. What measures
# processor time or makes two threads race is left out: under emulation it means nothing, and crawls.
# What is long elsewhere is shorter here, by MALT_STRESS. Little is reordered: soft-RoCE gives up a
# connection on which some five packets come out of order between two acknowledgements. A line of a
# row's output that begins with `measured: ` is shown with its result.
rows=(
  "verbs|150|$build/verbs_test --gtest_filter='-*Faults*:Removal.*'"
  "verbs-loss|120|impair 'loss 1%'; $build/verbs_test --gtest_filter='Queue.Bytes*:Queue.FullQueue*'"
  "faults|120|$build/verbs_test --gtest_filter='*Faults*'"
  "slot|60|$build/slot_test --gtest_filter=-SlotThreads.*"
  "stress-loss|90|impair 'loss 1%'; MALT_STRESS=0.002 MALT_TRANSPORT=verbs $build/segment_test --gtest_filter='SegmentStress.*'"
  "stress-order|90|impair 'limit 10000 delay 1ms reorder 0.1%'; MALT_STRESS=0.002 MALT_TRANSPORT=verbs $build/segment_test --gtest_filter='SegmentStress.*'"
  "death-loss|150|tc qdisc add dev lo root netem loss 10%; MALT_TRANSPORT=tcp $build/vol_test --gtest_filter='*DeathInTheMiddle*/0'"
  "python-svm|200|train_over_verbs"
  "calls-cut|120|cut_calls"
  "mixed|120|mixed_job"
  "gpu|240|gpu_job"
  "info|90|MALT_RDMA_DEVICE=rxe3 MALT_RDMA_PKEY=0xffff MALT_RDMA_SL=3 python -m malt info | grep 'transport verbs *yes, by rxe3:1:1 (RoCE v2, 10.88.0.3, MTU 4096, P_Key 0xffff, service level 3)'"
)
# At the end of the guest: rxe2 does not come back.
readonly last_row="removal|120|$build/verbs_test --gtest_filter='Removal.*'"
# The suite that is run over every transport (cmake/tests.cmake names it), but for what takes half of
# the time here: tests of the longest vectors, of which one is run, what the rows `stress` do, and
# what is the same over every transport (graphs drawn anew, a count of bytes, what a link keeps).
left_out="Group.Sixteen*:*AllreduceIsExact*/3:*ChangesSince*/3:*DeathInTheMiddle*/3:*DifferentlyDoNot*/3"
left_out+=":SegmentStress.*:*GraphIsDrawnAnew*:*EachRankWritesTwoVectorsLess*"
left_out+=":Link.TheMessageThatIsReceivedIsNotKept:Link.MessagesOfOtherTagsFill*"
while read -r name; do
  rows+=("verbs-${name%_test}|200|MALT_STRESS=0.02 MALT_TRANSPORT=verbs $build/$name --gtest_filter='-$left_out'")
done <"$build/conformance_tests"
rows+=("$last_row")
# Two hosts of two ranks each. Both ranks of the first are to tell what they have measured.
two_ranks="python -m malt run --nnodes 2 --rendezvous 10.77.0.1:29500 -n 2 --keep-going"
MALT_JOB_KEY=$(printf '%064d' 7)
export MALT_JOB_KEY
# name|seconds|statuses that the guests are to have (125: died)|command of a|command of b
pairs=(
  "host-death|150|125 0|$build/host_death victim|$build/host_death writer 10.77.0.1"
  "two-by-two|200|0 125|$two_ranks --node-rank 0 tests/softroce/host_death.py >/tmp/told; cat /tmp/told; test \$(grep -c measured: /tmp/told) = 2|$two_ranks --node-rank 1 tests/softroce/host_death.py"
)

readonly long=" stress-order death-loss python-svm gpu info verbs-allreduce verbs-exchange verbs-vol two-by-two "
if [[ ${2:-} == --quick ]]; then
  for rows_of in rows pairs; do
    declare -n all=$rows_of
    kept=()
    for row in "${all[@]}"; do [[ $long == *" ${row%%|*} "* ]] || kept+=("$row"); done
    all=("${kept[@]}")
  done
fi

# ---- The same training in the guest as outside -------------------------------------------------------
# BSP gives the same bits every time, whatever carries them.
export svm='examples/svm.py --epochs 2 --staleness 0' MALT_DATA=${MALT_DATA:-$HOME/.cache/malt}
train_over_shm() { python -m malt run -n 4 $svm --results "$1"; }
train_over_verbs() { # each rank over an adapter of its own
  # shellcheck disable=SC2016 # Expanded by each rank.
  MALT_TRANSPORT=verbs python -m malt run -n 4 -- \
    bash -c 'MALT_RDMA_DEVICE=rxe$((MALT_RANK + 1)) exec python $svm --results /tmp/svm.json'
  echo "measured: trained over shm:   $(learnt "$trained_over_shm")"
  echo "measured: trained over verbs: $(learnt /tmp/svm.json)"
  [[ $(learnt /tmp/svm.json) == "$(learnt "$trained_over_shm")" ]]
}
cut_calls() { # each rank over an adapter of its own
  # shellcheck disable=SC2016 # Expanded by each rank.
  MALT_TRANSPORT=verbs python -m malt run -n 2 -- \
    bash -c 'MALT_RDMA_DEVICE=rxe$((MALT_RANK + 1)) exec python tests/softroce/cut_calls.py'
}
# Two hosts that cannot map one another's memory, of two ranks each, of which the last is killed.
gpu_job() {
  local run="python -m malt run --nnodes 2 --rendezvous 127.0.0.1:29500 -n 2 --keep-going" node hosts=()
  export LD_LIBRARY_PATH=$build/fake_cuda FAKE_CUDA_COPY_DELAY_US=4000
  for node in 0 1; do
    MALT_RDMA_DEVICE=rxe$((node + 1)) unshare --pid --fork --mount-proc --ipc \
      $run --node-rank $node tests/softroce/gpu.py >/tmp/told$node 2>&1 &
    hosts+=($!)
  done
  for node in 0 1; do wait "${hosts[node]}" || true; done # the status is that of the killed rank
  cat /tmp/told?
  [[ $(cat /tmp/told? | grep -c measured:) == 3 ]]
}
# Four hosts that cannot map one another's memory, of two, two, one and one ranks; the third sees no adapter,
# and what is between the fourth's and the others carries only shorter packets than the adapters do.
mixed_job() {
  local run="python -m malt run --nnodes 4 --rendezvous 127.0.0.1:29500" node hosts=()
  ip link set p4 mtu 1500
  for node in 0 1 2 3; do
    MALT_RDMA_DEVICE=rxe$((node + 1)) unshare --pid --fork --mount-proc --ipc sh -ec "
      test $node != 2 || { mount -t tmpfs none /dev/infiniband && unset MALT_RDMA_DEVICE; }
      exec $run -n $((node < 2 ? 2 : 1)) --node-rank $node tests/softroce/mixed.py" &
    hosts+=($!)
  done
  for node in "${hosts[@]}"; do wait "$node"; done
}
learnt() { grep -oE '"(final_error|model_sha256)": [^,]*' "$1" | xargs; }

# ---- Inside the guest --------------------------------------------------------------------------------
# What leaves every adapter is delayed, lost, reordered: see tc-netem(8).
impair() {
  local i
  # shellcheck disable=SC2086 # A list of words.
  for ((i = 1; i <= nics; ++i)); do tc qdisc add dev "n$i" root netem $1; done
}

repair() {
  local i
  tc qdisc del dev lo root 2>/dev/null || true
  for ((i = 1; i <= nics; ++i)); do
    tc qdisc del dev "n$i" root 2>/dev/null || true
    [[ ! -e /sys/class/net/p$i ]] || ip link set "p$i" master br0 mtu 4200 up
  done
  while rdma link | grep -qv 'state ACTIVE'; do sleep 0.1; done
}

# run_rows RESULTS: leaves NAME.log and NAME.result (status, seconds) for each row.
run_rows() {
  local row name seconds line code start
  export -f impair train_over_verbs learnt cut_calls mixed_job gpu_job
  export build nics GTEST_COLOR=no
  for row in "${rows[@]}"; do
    IFS='|' read -r name seconds line <<<"$row"
    start=$SECONDS code=0
    timeout -k 5 "$seconds" bash -euo pipefail -c "$line" >"$1/$name.log" 2>&1 </dev/null || code=$?
    echo "$code $((SECONDS - start))" >"$1/$name.result"
    repair
  done
}

# ---- Outside -------------------------------------------------------------------------------------------
summary=() passed=0 failed=0
# judge NAME STATUS SECONDS LOG: STATUS is empty where the row did not run.
judge() {
  local result=passed
  case $2 in
    "") result="NOT RUN" ;;
    0) ! grep -qE 'SKIPPED|DISABLED TEST|[0-9]+ skipped|Running 0 tests|no tests ran' "$4" || result=SKIPPED ;;
    124) result="FAILED (time)" ;;
    *) result="FAILED ($2)" ;;
  esac
  if [[ $result == passed ]]; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    printf -- '--- %s: %s\n' "$1" "$result"
    cat "$4" 2>/dev/null || true
  fi
  summary+=("$(printf 'row %-14s %-14s %5s' "$1" "$result" "$3")")
  ! [[ -f $4 ]] || mapfile -t -O ${#summary[@]} summary < <(sed -nE 's/^(\[[0-9]+\] )?measured: /row   /p' "$4")
}

guest_rows() { # guest_rows RESULTS
  local row name code=0 status took
  OUT=$1 tests/softroce/bed.sh run -n "$nics" -m 3072 -t $((limit - SECONDS)) \
    "tests/softroce/run_tests.sh '$build' '${2:-}' --inside" >"$1/console" 2>&1 || code=$?
  ((code == 0)) || { echo "--- the guest ended with status $code" && cat "$1/console"; }
  for row in "${rows[@]}"; do
    name=${row%%|*} status='' took=''
    ! [[ -f $1/$name.result ]] || read -r status took <"$1/$name.result"
    judge "$name" "$status" "$took" "$1/$name.log"
  done
}

guest_pairs() { # guest_pairs RESULTS
  local row name seconds wanted a b start code log
  for row in "${pairs[@]}"; do
    IFS='|' read -r name seconds wanted a b <<<"$row"
    start=$SECONDS log=$1/$name.log code=''
    if ((seconds < limit - SECONDS)); then
      tests/softroce/bed.sh pair -c 1 -m 384 -t "$seconds" "$a" "$b" >"$log" 2>&1 || true
      code=1
      ! grep -q "^--- guests ended with $wanted\$" "$log" || code=0
    fi
    judge "$name" "$code" $((SECONDS - start)) "$log"
  done
}

if [[ ${3:-} == --inside ]]; then
  run_rows /mnt
  exit
fi
tests/softroce/bed.sh setup
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
export trained_over_shm=$results/svm.json
[[ ${2:-} == --quick ]] || train_over_shm "$trained_over_shm" >"$results/shm.log" 2>&1 ||
  { cat "$results/shm.log" && exit 1; }
guest_rows "$results"
guest_pairs "$results"
printf '\n%-18s %-14s %5s\n' row result s
printf '%s\n' "${summary[@]}"
printf '\nrows: %d passed, %d failed or not run\n' "$passed" "$failed"
((failed == 0))
