# shellcheck shell=bash
# Part of ./dev: bare trees of Debian's and Ubuntu's releases. In them .ci/wheel.sh tries a wheel,
# and the step `fresh` tries README.md's two commands. It calls .ci/set_up.sh, and reads its
# `become`.

# bare_tree SUITE [PACKAGE...]: the smallest tree of this release that has these, made once. Sets
# `bare`, its path.
bare_tree() {
  local suite=$1 options=()
  bare=$PWD/.cache/dev/bare/$(IFS=- && echo "$*")
  can_install >/dev/null 2>&1 || return
  [[ ! -e $bare.made ]] || return 0
  shift
  (ensure_system "${needs_of_trees[@]}") || return
  [[ $suite != noble ]] || options=(--components=main,universe)
  mkdir -p "${bare%/*}"
  # How this machine's apt reaches its servers.
  apt-config dump | grep -E '^Acquire::(https?::|Check-)' >"$bare.conf" || true
  options+=("--include=$(IFS=, && echo "apt${*:+,$*}")" "--aptopt=$bare.conf")
  "${become[@]}" rm -rf "$bare" &&
    "${become[@]}" mmdebstrap --quiet --variant=minbase "${options[@]}" "$suite" "$bare" &&
    touch "$bare.made"
}

# copy_tree TREE FOLDER PLACE: of `bare`, to be changed, with a copy of FOLDER as PLACE.
copy_tree() {
  "${become[@]}" rm -rf "$1"
  "${become[@]}" cp -a "$bare" "$1"
  "${become[@]}" mkdir -p "$1$3"
  "${become[@]}" cp -r "$2/." "$1$3"
}

# in_tree TREE FOLDERS COMMAND...: as root there, with nothing of this machine's environment. These
# FOLDERS of this machine, in one word, are there too.
in_tree() {
  # shellcheck disable=SC2016 # Expanded by that bash.
  "${become[@]}" unshare --mount --pid --fork --kill-child bash -euc '
    tree=$0
    mount --bind "$tree" "$tree" # Namespaces can be made only where the root is a mount.
    mount -t proc proc "$tree/proc"
    mount --rbind /sys "$tree/sys"
    mount --rbind /dev "$tree/dev"
    mount -t tmpfs tmpfs "$tree/dev/shm"
    for folder in $1; do
      mkdir -p "$tree$folder"
      mount --bind "$folder" "$tree$folder"
    done
    shift
    path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    PATH=$PATH:$path exec chroot "$tree" /usr/bin/env -i PATH="$path" HOME=/root "$@"
  ' "$@"
}

# join_network TREE: lets its root reach the servers of apt and pip as this machine does. Sets
# `network`, the words that the environment needs.
join_network() {
  local path
  {
    printf '%s\n' /etc/resolv.conf /etc/hosts /usr/local/share/ca-certificates
    python -m pip config debug | sed -n 's/^ *\(.*\), exists: True$/\1/p'
    python -m pip config list | sed -nE "s/^[^=]*\.(constraint|find-links)='(.*)'$/\2/p" |
      tr ' ' '\n'
  } | while read -r path; do
    [[ ! -e $path ]] || "${become[@]}" cp -rL --parents --remove-destination "$path" "$1"
  done
  mapfile -t network < <(env | grep -E \
    '^([A-Za-z]+_(proxy|PROXY)|(PIP|CCACHE)_[A-Z_]+|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE)=')
}
