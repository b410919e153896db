#!/bin/sh
# Is the server on the beat? Owed ticks by outcome, calls in progress, KV blocks.
#     sh examples/metrics.sh [http://127.0.0.1:8000]
curl -fsS "${1:-http://127.0.0.1:8000}/metrics" |
    grep -E '^metronome_(ticks_total|sessions_active|kv_blocks)'
