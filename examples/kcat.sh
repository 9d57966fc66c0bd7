#!/usr/bin/env bash
# A tensor from the shell: kcat.sh localhost:9092 weather.tensors
set -euo pipefail
message=$(mktemp) && trap 'rm -f "$message"' EXIT
{
  printf 'OCT\x01\x20\0\0\0'                                   # prefix: version 1, a header of 32 bytes
  # {"kind": "tensor", "dtype": "<f8", "shape": [4, 3]}
  printf '\x83\xa4kind\xa6tensor\xa5dtype\xa3<f8\xa5shape\x92\x04\x03'
  printf '\0\0\0\0\0\0\0\0'                                    # to the next multiple of 16
  for _ in {1..12}; do printf '\0\0\0\0\0\0\xf0\x3f'; done     # twelve times 1.0
} > "$message"
kcat -b "$1" -P -t "$2" -k shell "$message"
