# shellcheck shell=bash
# Part of ./dev: installs what the machine lacks, makes .venv and builds the package into it.
# It calls `say`, `fail` and `quietly` of ./dev, which calls `show_counts`, and reads `logs`.

# ---- The machine ---------------------------------------------------------------------------------
# By these words a command gets to be root.
become=()
((EUID == 0)) || become=(sudo -n)
can_install() { command -v apt-get && "${become[@]}" true; }
python_works() {
  "$1" - >/dev/null 2>&1 <<'END'
import ensurepip, os, sys, sysconfig, venv
assert sys.version_info >= (3, 10)
assert os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h"))
END
}
find_python() {
  local name
  for name in python3 python3.{14..10}; do
    if python_works "$name"; then
      echo "$name"
      return
    fi
  done
  return 1
}
# Saves what is compiled twice, but nobody has to have it.
has_ccache() { has_command ccache || ! can_install; }
has_compiler() {
  [[ $(echo __GNUC__ | "${CXX:-g++}" -E -P -x c++ - 2>/dev/null) =~ ^[0-9]+$ ]]
}
has_command() { PATH=$PATH:/usr/sbin:/sbin command -v "$1"; }
has_static_busybox() { [[ -x /bin/busybox ]] && ! ldd /bin/busybox; }
has_fuzzer() {
  echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
    clang++ -fsanitize=fuzzer,address,undefined -x c++ - -o /dev/null
}
# By this name Slurm loads it.
has_pmix() { [[ -n $(find /usr/lib* -name libpmix.so -print -quit) ]]; }
# Ubuntu's Chromium is a snap, which cannot be installed everywhere and does not read /tmp.
has_browser() { has_command chromium || grep -qx ID=ubuntu /etc/os-release; }
has_header() { echo "#include <$1>" | "${CXX:-g++}" -E -x c++ - >/dev/null 2>&1; }

# A check, and the packages that make it pass.
needs_of_build=(
  "find_python|python3 python3-venv python3-dev"
  "has_compiler|g++"
  "has_header openssl/ssl.h|libssl-dev"
  "has_header infiniband/verbs.h|libibverbs-dev"
  "test -e /etc/ssl/certs/ca-certificates.crt|ca-certificates"
  "has_ccache|ccache"
)
needs_of_test=(
  "${needs_of_build[@]}"
  "has_header gtest/gtest.h|libgtest-dev"
  "has_header benchmark/benchmark.h|libbenchmark-dev"
  "has_command pkg-config|pkg-config"
  "has_command ip|iproute2"
  "has_command tc|iproute2"
  "has_command nft|nftables"
  "has_command slurmctld|slurm-wlm"
  "has_command slurmd|slurm-wlm"
  "has_pmix|libpmix-dev"
  "has_command spin|spin"
  "has_command java|default-jre-headless" # for Spark
  "has_browser|chromium" # for the dashboard
)
needs_of_docs=(
  "find_python|python3 python3-venv python3-dev"
  "test -e /etc/ssl/certs/ca-certificates.crt|ca-certificates"
)
needs_of_rdma=(
  "command -v qemu-system-x86_64|qemu-system-x86"
  "has_static_busybox|busybox-static"
  "test -e /sbin/depmod|kmod"
  "test -e /sbin/tc|iproute2"
  "test -e /etc/libibverbs.d/rxe.driver|ibverbs-providers"
  "command -v cpio|cpio"
  "command -v xz|xz-utils"
)
needs_of_arm64=(
  "command -v aarch64-linux-gnu-g++|g++-aarch64-linux-gnu"
  "command -v qemu-aarch64-static|qemu-user-static"
  "test -e /usr/src/googletest/CMakeLists.txt|googletest"
)
needs_of_trees=(
  "has_command mmdebstrap|mmdebstrap"
)
needs_of_asan=(
  "has_fuzzer|clang libclang-rt-dev"
)

ensure_system() {
  local need packages=()
  for need in "$@"; do
    # shellcheck disable=SC2086 # Both halves are lists of words.
    ${need%|*} >/dev/null 2>&1 || packages+=(${need#*|})
  done
  ((${#packages[@]})) || return 0
  command -v apt-get >/dev/null || fail "please install what Debian calls: ${packages[*]}"
  can_install >/dev/null 2>&1 || fail "system packages are missing; please run
  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${packages[*]}"
  say "Installing system packages: ${packages[*]}"
  (
    flock 8 # Another step may be at it.
    quietly apt "${become[@]}" apt-get update
    quietly apt "${become[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y --no-install-recommends "${packages[@]}"
  ) 8>"$logs/apt.lock"
}

# ---- .venv: made once, then renewed in the parts whose inputs have changed -----------------------
hash_of() {
  find "$@" -type f -not -path '*/__pycache__/*' -print0 | sort -z | xargs -0 sha256sum | sha256sum
}
fresh() { [[ -f .venv/stamps/$1 && $(<".venv/stamps/$1") == "$2" ]]; }

ensure_venv() {
  local prefix
  prefix=$(.venv/bin/python -c 'import sys, pip; print(sys.prefix)' 2>/dev/null) || true
  if [[ $prefix != "$PWD/.venv" ]]; then
    say "Creating .venv"
    rm -rf .venv
    quietly venv "$(find_python)" -m venv .venv
    mkdir .venv/stamps
  fi
  # Compiled Python is kept: ranks would compile what they import, each time.
  unset PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE
  export VIRTUAL_ENV=$PWD/.venv PATH=$PWD/.venv/bin:$PATH
}

# Of what it reads, shows how far ninja is: on a terminal in a line that is rewritten, else in a
# line every half minute.
show_counts() {
  local line shown=$SECONDS count='^ *(\[[0-9]+/[0-9]+\], about [0-9:?]+ left): '
  while IFS= read -r line; do
    if [[ ! $line =~ $count ]]; then
      continue
    elif [[ -t 1 ]]; then
      printf '\r    %s\e[K' "${BASH_REMATCH[1]}"
    elif ((SECONDS - shown >= 30)); then
      shown=$SECONDS
      printf '    %s\n' "${BASH_REMATCH[1]}"
    fi
  done
  [[ ! -t 1 ]] || printf '\r\e[K'
}

# Prints what pyproject.toml requires: to build, to run, and for the extras named.
requirements() {
  python - "$@" <<'END'
import sys
try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    from pip._vendor import tomli as tomllib
with open("pyproject.toml", "rb") as file:
    settings = tomllib.load(file)
project = settings["project"]
wanted = [settings["build-system"]["requires"], project["dependencies"]]
wanted += [project["optional-dependencies"][extra] for extra in sys.argv[1:]]
print("\n".join(sum(wanted, ["cmake>=3.25", "ninja>=1.12"])))
END
}

# What tests/python needs, but for PyTorch and the engines, which `dev` has.
test_extras=(examples mpi learn data pool otel test)

ensure_packages() { # ensure_packages NAME EXTRA...
  local name=$1 wanted torch
  shift
  wanted=$(requirements "$@")
  ! fresh "packages-$name" "$wanted" || return 0
  say "Installing Python packages into .venv (a minute or two)"
  echo "$wanted" >"$logs/requirements-$name.txt"
  # PyTorch's own index has a build without the 5 GB of CUDA that PyPI's brings. PyPI's will do
  # where that index cannot be reached.
  if torch=$(grep '^torch==' <<<"$wanted"); then
    pip install --no-compile --no-deps --retries 0 --timeout 15 \
      --index-url https://download.pytorch.org/whl/cpu "$torch" >"$logs/torch.log" 2>&1 || true
  fi
  # Python compiles what is imported, when it is: a tenth of what these packages have.
  quietly pip pip install --no-compile -r "$logs/requirements-$name.txt"
  echo "$wanted" >".venv/stamps/packages-$name"
}

# As the preset dev compiles, so that ccache finds what that has in common with the extension.
as_in_dev=(--config-settings "cmake.define.CMAKE_CXX_FLAGS_RELEASE=-O3 -DNDEBUG -g1")

ensure_package() {
  local inputs
  inputs=$(
    hash_of CMakeLists.txt cmake src python/bindings python/malt_torch_backend.py pyproject.toml
    find python/malt -name '*.py' | sort
  )
  ! fresh malt "$inputs" || return 0
  say "Building MALT"
  quietly build pip install --verbose --no-deps --no-build-isolation "${as_in_dev[@]}" --editable .
  echo "$inputs" >.venv/stamps/malt
}

install_test_packages() { ensure_packages test "${test_extras[@]}" dev docs; }

set_up() { # set_up build|test [later]: `later`, install_test_packages does what takes long.
  exec 9>"$logs/lock"
  flock -n 9 || { say "Waiting for another ./dev to finish setting up" && flock 9; }
  local needs="needs_of_$1[@]"
  ensure_system "${!needs}"
  if has_command ccache >/dev/null; then
    # Builds have their folders at one depth, so what is below this one has the same name from each.
    export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=$PWD
    # A precompiled header needs the first two; `locale`: any language of messages does.
    export CCACHE_SLOPPINESS=pch_defines,time_macros,locale
  fi
  ensure_venv
  if [[ $1 == test && ${2:-} != later ]]; then
    install_test_packages
  elif [[ ! -f .venv/stamps/packages-test ]]; then
    ensure_packages build examples
  fi
  ensure_package
  exec 9>&-
}
