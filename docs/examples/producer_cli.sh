#!/usr/bin/env bash
# Post one request to Orcastream with redis-cli and JSON, and show the reply log as it grows.
#
#   ./producer_cli.sh orca-demo "$(orcastream tokenize --chat 'Count from 3 to 7.')"
#
# Environment: REDIS_URL, MAX_TOKENS, DEADLINE_S, REQUEST_ID, NAMESPACE. Needs bash, redis-cli, gzip, od.
# Exit status: 0 finished, 1 ended with an error, 2 no end in time, 4 not confirmed by Redis.
#
# This prints events as they stand in the log. A program that uses the tokens must fold them by `position` (see
# producer_redis.py): after a takeover runs may overlap, and only the part behind what it has is new.
set -euo pipefail

model=${1:?usage: producer_cli.sh MODEL '[token ids]'}
prompt=${2:?usage: producer_cli.sh MODEL '[token ids]'}
namespace=${NAMESPACE:-orca}
id=${REQUEST_ID:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')}

redis() { redis-cli -u "${REDIS_URL:-redis://localhost:6379/0}" --raw "$@"; }

# The lane: lowest byte of the CRC-32 of the id, which gzip writes first into its trailer of eight bytes.
lane=$(printf %s "$id" | gzip -c | tail -c 8 | od -An -N1 -tx1 | tr -d ' \n')
log="$namespace:reply:{$lane}:$id"

not_confirmed() { echo "not confirmed: $1" >&2; exit 4; }

# The deadline is on the server's clock: the first line of TIME is seconds.
now=$(redis TIME) || not_confirmed "no answer from Redis"
now=${now%%$'\n'*}
[[ $now =~ ^[0-9]+$ ]] || not_confirmed "$now"
deadline=$((now + ${DEADLINE_S:-60}))

posted=$(redis XADD "$namespace:{$model}:requests:normal" '*' \
  id "$id" v 1 deadline "${deadline}000" \
  payload "{\"prompt\":$prompt,\"max_tokens\":${MAX_TOKENS:-64},\"temperature\":0}") || not_confirmed "no answer from Redis"
[[ $posted =~ ^[0-9]+-[0-9]+$ ]] || not_confirmed "$posted"

cursor=0-0
give_up=$((SECONDS + ${DEADLINE_S:-60} + 5))
while ((SECONDS < give_up)); do
  # One entry at a time: key, entry id, then `type`, its value, `payload`, its value (JSON without line breaks).
  { read -r _ && read -r entry && read -r _ && read -r type && read -r _ && read -r payload; } \
    < <(redis XREAD COUNT 1 BLOCK 1000 STREAMS "$log" "$cursor") || { sleep 0.1; continue; }
  cursor=$entry
  echo "$type $payload"
  case $type in
  finished) exit 0 ;;
  error) exit 1 ;;
  esac
done
echo "no end of $log in time" >&2
exit 2
