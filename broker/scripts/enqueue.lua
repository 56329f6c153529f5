-- Accept a request once: check its terms, then write `seen`, the entry and the books, together or not at all.
-- KEYS[1..4] request streams, most urgent first; KEYS[5] seen key; KEYS[6] work; KEYS[7] throughput; KEYS[8] rate of the
-- tenant; optionally KEYS[9] record
-- ARGV[1] JSON object, ARGV[2..] fields of the entry, optionally followed by the record. In the object:
--   id, class, tenant, deadline (Unix ms), tokens (prompt and longest answers together), length (tokens of the longest answer),
--   seen_until (Unix ms, when `seen` expires), optionally replaces (the entry that this one replaces if it is gone),
--   and record (true if there is one; it is stored as long as `seen`);
--   and the terms, all optional: max_requests and max_tokens, waiting and running in the class; max_wait_ms, and
--   max_wait_share of the time until the deadline; requests_per_minute and max_concurrency of the tenant, and
--   tenant_requests and tenant_tokens, its share of the queue
-- Returns {class, entry id and optionally outcome and tenant, duplicate 0|1, depth}
--      or {'', reason, found, allowed, after how many ms to try again}; then nothing was written
local asked = cjson.decode(ARGV[1])
-- Any program may call this script. What the books could not take off again, and what would be an error after the
-- first write, is refused before it.
local function number(value) return type(value) == 'number' and value >= 0 and value < 2 ^ 53 end
local function name(value) return type(value) == 'string' and string.match(value, '^[%w_./-]+$') end
local function text(value) return type(value) == 'string' end
local function boolean(value) return type(value) == 'boolean' end
local required = {class = name, tenant = name, deadline = number, tokens = number, length = number, seen_until = number}
local optional = {
  id = name, replaces = text, record = boolean,
  max_requests = number, max_tokens = number, max_wait_ms = number, max_wait_share = number,
  requests_per_minute = number, max_concurrency = number, tenant_requests = number, tenant_tokens = number,
}
for key, value in pairs(asked) do
  local valid = required[key] or optional[key]
  if not valid then return redis.error_reply('ERR ' .. key .. ': no such field exists') end
  if not valid(value) then return redis.error_reply('ERR ' .. key .. ': not a value of this field') end
end
for key in pairs(required) do
  if asked[key] == nil then return redis.error_reply('ERR ' .. key .. ': the field is required') end
end
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000
local MINUTE_MS = 60000
-- The part of its time that a request may be expected to take, including the wait: the expectation is a mean.
local END_SHARE = 0.8

local numbers, lengths, depth = {}, {}, 0
for i = 1, 4 do
  numbers[string.match(KEYS[i], '[^:]+$')] = i
  lengths[i] = redis.call('XLEN', KEYS[i])
  depth = depth + lengths[i]
end
local own = numbers[asked.class]
if not own then return redis.error_reply('ERR class: no stream in KEYS is of it') end

-- Number of the stream and entry id; nil if `ref` is not `class entry-id`, optionally followed by outcome and tenant
local function parsed(ref)
  local class, id, rest = string.match(ref, '^(%S+) (%d+%-%d+)(.*)$')
  if rest ~= '' and not (rest and string.match(rest, '^ %S+ %S+$')) then return nil end
  return numbers[class], id
end

local function exists(ref)
  local i, id = parsed(ref)
  return i ~= nil and request_of(KEYS[i], id) == asked.id
end

-- A number from the books; 0 if it has none.
local function counted(field)
  local value = redis.pcall('HGET', KEYS[6], field)
  return math.max(type(value) == 'string' and tonumber(value) or 0, 0)
end

-- Tokens asked for by a class's waiting and running requests. An entry written with plain XADD counts as the mean one.
local function tokens_of(i)
  local class = string.match(KEYS[i], '[^:]+$')
  local requests, tokens = counted('requests ' .. class), counted('tokens ' .. class)
  if lengths[i] == 0 or requests == 0 then return lengths[i] * asked.tokens end
  return tokens + math.max(lengths[i] - requests, 0) * tokens / requests
end

-- What all workers serve together: tokens per ms, ms per token of one answer, tokens already done of running requests,
-- weight of a class. Computed only when needed, because there may be many workers.
local service
local function served()
  if service then return service end
  local sum, reports = {per_ms = 0, token_ms = 0, done = 0, class_weight = 1}, redis.pcall('HVALS', KEYS[7])
  service = sum
  if reports.err then return sum end
  local workers = 0
  for _, text in ipairs(reports) do
    local until_ms, body = string.match(text, '^(%d+) (.*)$')
    local is_json, report = pcall(cjson.decode, body or '')
    if is_json and type(report) == 'table' and tonumber(until_ms) > now_ms then
      workers = workers + 1
      sum.per_ms = sum.per_ms + (tonumber(report.tokens_per_s) or 0) / 1000
      sum.token_ms = sum.token_ms + (tonumber(report.token_ms) or 0)
      sum.done = sum.done + (tonumber(report.done) or 0)
      sum.class_weight = math.max(tonumber(report.class_weight) or 1, 1)
    end
  end
  sum.token_ms = workers > 0 and sum.token_ms / workers or 0
  return sum
end

-- How long a new request of the class is expected to wait. Of less urgent requests only the oldest precede it, a share
-- equal to the ratio of the weights.
local function expected_wait_ms()
  local ahead = 0
  for i = 1, 4 do ahead = ahead + tokens_of(i) * math.min(served().class_weight ^ (own - i), 1) end
  return math.max(ahead - served().done, 0) / served().per_ms
end

-- Whether any entry is still undelivered. While none is, workers have free slots or have only just filled them.
local function anything_waits()
  for i = 1, 4 do
    local pending = redis.pcall('XPENDING', KEYS[i], 'workers')
    if lengths[i] > (pending.err and 0 or pending[1]) then return true end
  end
  return false
end

-- The tenant's bucket, as the time at which it is full again (generic cell rate algorithm); its burst is a minute's requests
local function bucket_full_ms()
  local stored = redis.pcall('GET', KEYS[8])
  local full_ms = type(stored) == 'string' and tonumber(stored) or now_ms
  -- It is never full later than in a minute, unless the clock was set back since.
  if full_ms > now_ms + MINUTE_MS + 1 then full_ms = now_ms end
  return math.max(full_ms, now_ms) + MINUTE_MS / asked.requests_per_minute
end

-- Why the request is not accepted: reason, found, allowed, ms to wait; nil if it is accepted
local function refusal()
  if asked.requests_per_minute then
    local late_ms = bucket_full_ms() - now_ms - MINUTE_MS
    if late_ms > 0.5 then return {'rate', asked.requests_per_minute, asked.requests_per_minute, late_ms} end
  end
  local function time_for(tokens) return served().per_ms > 0 and tokens / served().per_ms or 1000 end
  local function own_ms() return asked.length * served().token_ms end
  if asked.max_concurrency then
    local running = counted('tenant ' .. asked.tenant)
    if running >= asked.max_concurrency then
      return {'concurrency', running, asked.max_concurrency, own_ms() / math.max(running, 1)}
    end
  end
  if asked.tenant_requests or asked.tenant_tokens then
    local requests, tokens = counted('tenant ' .. asked.tenant), counted('tenant-tokens ' .. asked.tenant)
    if asked.tenant_requests and requests >= asked.tenant_requests then
      return {'share', requests, asked.tenant_requests, time_for(tokens / math.max(requests, 1))}
    end
    if asked.tenant_tokens and requests > 0 and tokens + asked.tokens > asked.tenant_tokens then
      return {'token_share', tokens + asked.tokens, asked.tenant_tokens, time_for(tokens + asked.tokens - asked.tenant_tokens)}
    end
  end
  local tokens = tokens_of(own)
  if asked.max_requests and lengths[own] >= asked.max_requests then
    return {'requests', lengths[own], asked.max_requests, time_for(tokens / math.max(lengths[own], 1))}
  end
  if asked.max_tokens and lengths[own] > 0 and tokens + asked.tokens > asked.max_tokens then
    return {'tokens', tokens + asked.tokens, asked.max_tokens, time_for(tokens + asked.tokens - asked.max_tokens)}
  end
  if not (asked.max_wait_ms or asked.max_wait_share) or not anything_waits() or served().per_ms <= 0 then return nil end
  local left_ms, wait_ms = asked.deadline - now_ms, expected_wait_ms()
  local allowed_ms = math.min(left_ms * (asked.max_wait_share or 1), left_ms * END_SHARE - own_ms())
  if asked.max_wait_ms then allowed_ms = math.min(allowed_ms, asked.max_wait_ms) end
  allowed_ms = math.max(allowed_ms, 0)
  if wait_ms > allowed_ms + 0.5 then return {'wait', wait_ms, allowed_ms, wait_ms - allowed_ms} end
end

local seen, replaces = redis.pcall('GET', KEYS[5]), asked.replaces or ''
local seen_until = string.format('%.0f', asked.seen_until)
-- Ignore a value that some other program wrote there.
if type(seen) ~= 'string' or not parsed(seen) then seen = false end
if seen and (string.match(seen, '^%S+ %S+') ~= replaces or exists(seen)) then
  return {seen, 1, depth}
end
if not seen and replaces ~= '' and exists(replaces) then
  redis.call('SET', KEYS[5], replaces, 'PXAT', seen_until)
  return {replaces, 1, depth}
end
local refused = refusal()
if refused then
  for i = 2, 4 do refused[i] = math.floor(refused[i] + 0.5) end
  return {'', unpack(refused)}
end
-- The first write: if memory is full, it is refused and nothing has changed. Later writes do not fail for lack of memory.
local id = redis.call('XADD', KEYS[own], '*', unpack(ARGV, 2, asked.record and #ARGV - 1 or #ARGV))
local ref = asked.class .. ' ' .. id
local set = redis.pcall('SET', KEYS[5], ref, 'PXAT', seen_until)
if set.err then
  redis.call('XDEL', KEYS[own], id)
  return set
end
if asked.record then redis.call('SET', KEYS[9], ARGV[#ARGV], 'PXAT', seen_until) end
-- If some other program has corrupted these keys, nothing is counted, and every request is served.
redis.pcall('HSET', KEYS[6], ref, string.format('%.0f %s', asked.tokens, asked.tenant))
redis.pcall('HINCRBY', KEYS[6], 'requests ' .. asked.class, 1)
redis.pcall('HINCRBY', KEYS[6], 'tokens ' .. asked.class, string.format('%.0f', asked.tokens))
redis.pcall('HINCRBY', KEYS[6], 'tenant ' .. asked.tenant, 1)
redis.pcall('HINCRBY', KEYS[6], 'tenant-tokens ' .. asked.tenant, string.format('%.0f', asked.tokens))
if asked.requests_per_minute then
  local full_ms = bucket_full_ms()
  redis.pcall('SET', KEYS[8], string.format('%.3f', full_ms), 'PX', math.ceil(full_ms - now_ms))
end
return {ref, 0, depth + 1}
