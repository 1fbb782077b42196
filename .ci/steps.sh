# shellcheck shell=bash
# Part of ./dev: the steps of ./dev test. Each is a function step_NAME whose output goes to a log.
# They call .ci/set_up.sh and .ci/trees.sh, and read `logs` and `cores`.

# With what a step ends that cannot be run here, after a line that begins with SKIPPED and says why.
exit_skipped=77
# C++ tests that a machine may rightly skip.
allowed_skips='Avx2|Avx512'

build_preset() { # build_preset PRESET [OPTION...]
  cmake --preset "$1"
  cmake --build --preset "$@"
}
# A test that fails is run once more, alone. If it then passes, the summary names it in a line that
# begins with UNSTEADY: a fault to be mended, but no reason to hold back everything else. More tests
# than these fail at once by no accident, and what a sanitizer reports is a fault however rare.
most_unsteady=3
unsteady() { # unsteady TEST...: these have passed the second time.
  printf 'UNSTEADY: failed, then passed alone (the log has both): %s\n' "$@"
}
cpp_tests() { # cpp_tests PRESET [COMMAND...]: those with a label, a target too, if `label` names it
  local preset=$1 out=$logs/ctest-$1.txt skipped failed
  shift
  build_preset "$preset" ${label:+--target "${label}_tests"}
  if ! "$@" ctest --preset "$preset" -j "$cores" ${label:+-L "$label"} | tee "$out"; then
    mapfile -t failed < <(sed 's/^[0-9]*://' "build/$preset/Testing/Temporary/LastTestsFailed.log")
    ((${#failed[@]} && ${#failed[@]} <= most_unsteady)) || return 1
    ! grep -qE 'Sanitizer: |: runtime error: ' "$out" || return 1
    "$@" ctest --preset "$preset" --rerun-failed | tee -a "$out"
    unsteady "${failed[@]}"
  fi
  if skipped=$(grep -E '\*\*\*(Skipped|Not Run)' "$out" | grep -vE "$allowed_skips"); then
    printf 'These were skipped, and may not be here:\n%s\n' "$skipped"
    return 1
  fi
}
pytests() { # pytests NAME COMMAND...: a pytest whose failed tests can be run once more
  local cache=$PWD/$logs/pytest-$1 code=0 failed
  shift
  rm -rf "$cache"
  "$@" -o cache_dir="$cache" || code=$?
  ((code)) || return 0
  mapfile -t failed < <(python -m json.tool "$cache/v/cache/lastfailed" |
    sed -nE 's/^ *"(.*)": true,?$/\1/p')
  ((code == 1 && ${#failed[@]} <= most_unsteady)) || return "$code"
  sed -i -E 's/@[^"@]*"(: true)/"\1/' "$cache/v/cache/lastfailed" # the groups are of -n alone
  "$@" -o cache_dir="$cache" --last-failed -n 0
  unsteady "${failed[@]}"
}
# What Python's tests and the linters need, installed beside C++'s tests, which do without.
step_packages() { install_test_packages; }
# The sanitizers' builds, which can be made beside other steps.
step_builds() {
  ensure_system "${needs_of_asan[@]}"
  build_preset asan
  build_preset tsan
}
step_cpp() { cpp_tests dev; }
# Of `cpp`, what `asan` does not show.
step_as_installed() {
  local label=as_installed
  cpp_tests dev
}
step_asan() {
  ensure_system "${needs_of_asan[@]}"
  cpp_tests asan
}
step_tsan() {
  # TSan needs its part of the address space free: no randomised addresses, where that can be had.
  local prefix=()
  ! setarch "$(uname -m)" -R true 2>/dev/null || prefix=(setarch "$(uname -m)" -R)
  cpp_tests tsan "${prefix[@]}"
}
step_install() { # The installed library, through find_package and through pkg-config.
  local prefix=$PWD/build/installed out=build/consumer
  cmake --preset dev
  cmake --build --preset dev --target dstorm vol learn
  rm -rf "$prefix" "$out"
  cmake --install build/dev --prefix "$prefix"
  cmake -S tests/install -B "$out" -DCMAKE_PREFIX_PATH="$prefix"
  cmake --build "$out"
  "$out/consumer"
  local libdir
  libdir=$(dirname "$(find "$prefix" -name dstorm.pc)")
  # shellcheck disable=SC2046 # pkg-config prints options.
  "${CXX:-g++}" -std=c++20 tests/install/consumer.cpp -o "$out/consumer-pc" \
    $(PKG_CONFIG_PATH=$libdir pkg-config --cflags --libs learn)
  LD_LIBRARY_PATH=${libdir%/pkgconfig} "$out/consumer-pc"
}
# A wheel by the machine's compiler, in a tree that has Python and no compiler. `./dev wheel` does
# the same with those that are to be published.
step_wheel() {
  local out=$PWD/build/wheel/local
  rm -rf "$out"
  pip wheel --quiet --no-deps --no-build-isolation "${as_in_dev[@]}" --wheel-dir "$out" .
  check_wheel_file "$out"/*.whl
  try_wheel "$out"/*.whl python
}
# README.md's two commands where nothing is installed: in a bare tree, on a clone of HEAD. The demo
# has fewer documents, and of the steps of `./dev test` there are the quick ones.
step_fresh() {
  local suite=${FRESH_SYSTEM:-bookworm} clone=$logs/fresh tree command begin caches=() took=()
  local small=(--made 4000 --ranks 2 3) quick=(ruff mpi2)
  [[ $suite =~ ^(bookworm|trixie|noble)$ ]] ||
    fail "FRESH_SYSTEM=$suite is none of bookworm, trixie and noble"
  # Root shares what has been downloaded and compiled.
  if ((EUID == 0)); then
    caches=("$(python -m pip cache dir)" "$(ccache --get-config cache_dir)")
    mkdir -p "${caches[@]}"
  fi
  if ! git diff --stat --exit-code HEAD; then
    cannot_run MALT_FRESH "a clone lacks these changes, which have not been committed" || return
  elif ! bare_tree "$suite"; then
    cannot_run MALT_FRESH "no bare tree of $suite can be made here (the log says why)" || return
  fi
  rm -rf "$clone"
  git clone --quiet --depth 1 "file://$PWD" "$clone"
  tree=$bare.fresh
  copy_tree "$tree" "$clone" "$PWD"
  join_network "$tree"
  for command in "demo ${small[*]}" "test ${quick[*]}"; do
    begin=$SECONDS
    # shellcheck disable=SC2086 # A list of words.
    in_tree "$tree" "${caches[*]}" \
      env -C "$PWD" "${network[@]}" HOME="$HOME" ./dev $command
    took+=("\`./dev $command\` $((SECONDS - begin)) s")
  done
  echo "row a bare $suite: $(IFS=, && echo "${took[*]}")"
  "${become[@]}" rm -rf "$tree"
}
step_arm64() {
  ensure_system "${needs_of_arm64[@]}"
  local out=$PWD/build/arm64 prefix=$PWD/build/arm64/googletest toolchain=$PWD/cmake/arm64.cmake
  local tests=(slot_test copies_test membership_test membership_hosts_test accusations_test)
  copy_headers "$out/include"
  cmake -S /usr/src/googletest -B "$prefix/build" -DCMAKE_TOOLCHAIN_FILE="$toolchain" \
    -DCMAKE_INSTALL_PREFIX="$prefix" -DBUILD_GMOCK=OFF -DCMAKE_BUILD_TYPE=Release
  cmake --build "$prefix/build" --target install
  cmake -B "$out" -DCMAKE_TOOLCHAIN_FILE="$toolchain" -DMALT_TESTS=ON \
    -DGTest_ROOT="$prefix" -DMALT_OPENSSL_INCLUDE="$out/include" -DMALT_VERBS_INCLUDE="$out/include"
  cmake --build "$out" --target dstorm vol learn "${tests[@]}"
  # As many simulated jobs as the emulator can run in a minute.
  MALT_SEEDS=40 ctest --test-dir "$out" --output-on-failure -j "$cores" \
    -R "^($(IFS='|' && echo "${tests[*]}"))\."
}
step_rdma() {
  ensure_system "${needs_of_rdma[@]}"
  cmake --preset dev
  cmake --build --preset dev --target rdma_tests
  tests/softroce/run_tests.sh build/dev "$@"
}
# Without the rows that test little of the transport itself.
step_rdma_quick() { step_rdma --quick; }
step_fuzz() {
  local seconds=${FUZZ_SECONDS:-8} seed=1 # so that what fails here failed by what has changed
  [[ -z ${FUZZ_SECONDS:-} ]] || seed=0     # any: for new finds
  [[ $seconds =~ ^[1-9][0-9]*$ ]] ||
    fail "FUZZ_SECONDS=$seconds is no whole number of seconds from 1"
  ensure_system "${needs_of_asan[@]}"
  build_preset asan --target fuzz_targets
  python .ci/fuzz.py "$seconds" "$seed"
}
# Jobs wait more than they compute: one test more than there are cores runs at a time. Tests of one
# xdist_group take turns. Beyond eight the longest test alone takes longer than all others.
beside=(--dist loadgroup -n "$((cores < 8 ? cores + 1 : 8))")
# The tests of web pages are left out if apt has no Chromium.
may_lack_browser() {
  ! has_command chromium >/dev/null || return 0
  echo "SKIPPED: the tests in a browser: apt has no Chromium"
  export MALT_WITHOUT_BROWSER=1
}
step_python() {
  may_lack_browser
  pytests python python -m pytest "${beside[@]}" --durations 40 tests/python -m "not long" \
    --ignore tests/python/project/test_readme.py
}
# The tests that `python` leaves out.
step_long() { pytests long python -m pytest "${beside[@]}" tests/python -m long; }
# Other libraries' own tests, with malt's classes in place of theirs: tests/peers.
step_peers() {
  local there=$PWD/.cache/dev/peers
  if ! python -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "SKIPPED: the scikit-learn whose tests they are needs Python 3.11"
    return "$exit_skipped"
  fi
  pip install --quiet --upgrade --no-deps --target "$there" \
    celer==0.7.4 llvmlite==0.50.0 numba==0.68.1 skglm==0.5
  OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONPATH=$there python tests/peers/peers.py -n "$cores"
}
# Prints a Python of this version that builds extensions: on PATH, of pyenv, or one uv downloads.
python_of() {
  local python
  for python in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
    if python_works "$python"; then
      command -v "$python"
      return
    fi
  done
  uv python install --quiet "$1"
  uv python find --managed-python "$1"
}
# python_tests VERSION RESOLUTION: in an environment made anew, with the versions that uv resolves.
python_tests() {
  local wanted=$logs/requirements-$1.txt python names install
  python=$(python_of "$1")
  requirements "${test_extras[@]}" >"$wanted"
  requirements "${test_extras[@]}" torch >"$wanted.torch"
  export VIRTUAL_ENV=$PWD/.cache/dev/python$1
  uv venv --clear --seed --python "$python" "$VIRTUAL_ENV" # --seed: a test calls pip
  export PATH=$VIRTUAL_ENV/bin:$PATH
  install=(uv pip install --resolution "$2")
  # PyPI's PyTorch, second, brings 5 GB of CUDA.
  if ! "${install[@]}" -r "$wanted.torch" --torch-backend cpu &&
    ! "${install[@]}" -r "$wanted.torch"; then
    "${install[@]}" -r "$wanted"
    echo "SKIPPED: the tests with PyTorch: it could not be installed for Python $1" \
      "(the step's log says why)"
    export MALT_WITHOUT_TORCH=1
  fi
  # The engines take long to install, and are pinned; `long` tests with them.
  echo "SKIPPED: the tests of Dask, Ray and Spark, which \`./dev test long\` runs"
  export MALT_WITHOUT_ENGINES=1
  names=$(sed -E 's/[^A-Za-z0-9_-].*//; s/_/-/g' "$wanted.torch" | sort -u | paste -sd'|')
  echo "row $(python --version): $(uv pip freeze | grep -iE "^($names)==" | paste -sd' ')"
  uv pip install --no-deps --no-build-isolation --reinstall-package malt-sgd .
  step_python
}
# The supported versions of Python are those that pyproject.toml's classifiers name.
supported_pythons() {
  sed -nE 's/.*"Programming Language :: Python :: (3\.[0-9]+)".*/\1/p' pyproject.toml | sort -V
}
step_oldest() { python_tests "$(supported_pythons | head -n 1)" lowest-direct; }
step_newest() { python_tests "$(supported_pythons | tail -n 1)" highest; }
# The newest patch of each minor version of PyTorch that torch.distributed's backend supports, in
# front of the one in .venv. Each takes some 7 GB of disk while its tests run.
step_torches() {
  local minors minor failed=()
  mapfile -t minors < <(pip index versions torch | grep -oE '\b2\.[0-9]+\b' | sort -uV |
    sed -n '/^2\.6$/,$p')
  for minor in "${minors[@]}"; do
    torch_tests "$minor" || failed+=("$minor")
  done
  rm -rf .cache/dev/torch
  ((${#minors[@]} && ${#failed[@]} == 0)) || { echo "failed with: ${failed[*]}" && return 1; }
}
torch_tests() { # torch_tests MINOR_VERSION
  local there=$PWD/.cache/dev/torch
  rm -rf "$there"
  pip install --quiet --no-compile --target "$there" "torch==$1.*" &&
    echo "row $(PYTHONPATH=$there python -c 'import torch; print("PyTorch", torch.__version__)')" &&
    PYTHONPATH=$there pytests "torch-$1" \
      python -m pytest "${beside[@]}" tests/python/torch -m "not long"
}
# Frameworks that make the process group themselves.
step_programs() {
  ensure_packages programs programs
  pytests programs python -m pytest "${beside[@]}" tests/programs
}
step_readme() {
  pytests readme python -m pytest "${beside[@]}" tests/python/project/test_readme.py
}
# Warnings are errors (mkdocs.yml), among them links and anchors that lead nowhere.
build_site() {
  python .ci/site_pages.py build/site && NO_MKDOCS_2_WARNING=1 mkdocs build
}
step_docs() {
  build_site
  may_lack_browser
  python -m pytest -p no:cacheprovider tests/site
}
# mpi_tests RANKS: each rank logs to its own file; rank 0's and the failed ones' are shown.
mpi_tests() {
  local out=$logs/mpi$1 rank code=0
  rm -rf "$out" && mkdir "$out"
  # shellcheck disable=SC2016 # Expanded by each rank.
  mpirun --oversubscribe --bind-to none -n "$1" bash -c '
    python -m pytest tests/mpi -p no:cacheprovider >"$0/$OMPI_COMM_WORLD_RANK" 2>&1
    code=$?
    echo $code >"$0/$OMPI_COMM_WORLD_RANK.code"
    exit $code' "$out" || code=$?
  for ((rank = $1 - 1; rank >= 0; --rank)); do
    if [[ $(cat "$out/$rank.code" 2>/dev/null) != 0 ]]; then
      code=1
      echo "--- rank $rank of $1 failed:" && cat "$out/$rank" || true
    elif ((rank == 0)); then
      cat "$out/0"
    fi
  done
  return "$code"
}
step_mpi1() { mpi_tests 1; }
step_mpi2() { mpi_tests 2; }
step_mpi4() { mpi_tests 4; }
# cannot_run VARIABLE WHY...: ends a step, which is skipped, or fails where CI or VARIABLE=required
# asks for it.
cannot_run() {
  if [[ -n ${CI:-} || ${!1:-} == required ]]; then
    echo "${*:2}"
    return 1
  fi
  echo "SKIPPED: ${*:2}; $1=required makes this a failure"
  return "$exit_skipped"
}
step_hosts() { hosts_tests "not long"; }
step_hosts_long() { hosts_tests long; }
# hosts_tests MARK. Hosts are namespaces, which take root to make: as such, or in a namespace of
# users, or through sudo.
hosts_tests() {
  local python become
  python=$(command -v python)
  for become in "" "unshare --user --map-root-user" "sudo -n"; do
    # shellcheck disable=SC2086 # A list of words.
    if $become "$python" tests/hosts/hosts.py; then
      # Fewer at a time than elsewhere, since most of these hold the library to times.
      pytests hosts $become env "PATH=$PATH" MALT_HOSTS=required MALT_NO_SKIPS=1 "$python" \
        -m pytest "${beside[@]}" -n "$((cores < 4 ? cores : 4))" tests/hosts -m "$1"
      return
    fi
  done
  cannot_run MALT_HOSTS "these tests need root, a user namespace or sudo without a password to" \
    "make network namespaces"
}
step_model() { python tests/model/run.py; }
step_chaos() { pytests chaos python -m pytest "${beside[@]}" tests/chaos; }
step_ruff() {
  ruff check
  ruff format --check
  lint-imports --no-cache
}
step_mypy() { mypy; }
cpp_files() { find src tests benchmarks examples fuzz python/bindings -name '*.[ch]pp' | sort; }
# Lines end at 100 columns, comments too, which clang-format leaves as they are.
step_format() {
  cpp_files | xargs clang-format --dry-run -Werror &&
    ! cpp_files | xargs grep -nE '^.{101}'
}
step_tidy() {
  cmake --preset dev
  python .ci/clang_tidy.py src build/dev
}
step_tidy_tests() {
  ensure_system "${needs_of_asan[@]}"
  cmake --preset dev
  cmake --preset asan # for the fuzz targets
  python .ci/clang_tidy.py benchmarks,fuzz,tests,python/bindings build/dev build/asan build/python-*
}

lint_steps=(ruff mypy format tidy tidy_tests)
# After the C++ tests, beside whose build `tidy` cannot begin.
test_steps=(install wheel python readme docs mpi1 mpi2 mpi4 hosts model chaos ruff mypy format)
sanitized_steps=('packages&' as_installed packages 'builds&' "${test_steps[@]}" 'tidy&' builds asan
  tsan fuzz)
pythons_steps=(oldest newest)
