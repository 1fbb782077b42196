# shellcheck shell=sh
# Tries a wheel on a machine with Python and nothing else: sh try_wheel.sh PYTHON. Beside this file
# lie the wheels of MALT and NumPy, and hello.py. Fails if there is a compiler, if hello.py does not
# run with four ranks, or if installing and running takes 10 s.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
limit_ms=10000
fail() {
  echo "try_wheel.sh: $1" >&2
  exit 1
}
for tool in c++ cc clang cmake g++ gcc ld make ninja; do
  ! command -v "$tool" || fail "with $tool on PATH this shows nothing"
done
"$1" -m venv "$here/venv"
PATH=$here/venv/bin:$PATH
cd "$here"
begin=$(date +%s%N)
pip install --quiet --no-index --find-links "$here" malt-sgd
malt run -n 4 hello.py >said
took=$((($(date +%s%N) - begin) / 1000000))
cat said
[ "$(grep -c 'rank [0-3] of 4' said)" = 4 ] || fail "hello.py did not run with four ranks"
malt info | tee known
if grep -qw avx2 /proc/cpuinfo && grep -q '^vector instructions *baseline' known; then
  fail "the wheel does not see the processor's vector instructions"
fi
echo "row installed and run in $took ms"
[ "$took" -lt "$limit_ms" ] || fail "it took more than $limit_ms ms"
