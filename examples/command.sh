#!/bin/bash
# Estimates pi by throwing darts, with nothing but a shell and awk. It goes on where its state folder says, and saves a
# last time when it is asked to end: that is all that a command has to do.
set -eu
state=$SPOTRUN_STATE_DIR/darts
round=0 hits=0
[ -f "$state" ] && read -r round hits < "$state"
echo "begins at round $round"

save() {
    echo "$round $hits" > "$state.new"
    mv "$state.new" "$state"        # whole or not at all
}
trap 'save; echo "saved at round $round"; exit 0' TERM

while [ "$round" -lt "${1:-60}" ]; do
    more=$(awk -v seed="$round" 'BEGIN { srand(seed); for (i = 0; i < 100000; i++) n += rand()^2 + rand()^2 < 1; print n }')
    round=$((round + 1)) hits=$((hits + more))
    [ $((round % 5)) -eq 0 ] && save && sleep "${2:-7}"     # spotrun wants to see it at rest for 5 s
done
save
awk -v hits="$hits" -v rounds="$round" 'BEGIN { printf "pi is about %.5f\n", 4 * hits / (rounds * 100000) }'
