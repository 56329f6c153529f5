-- Return the next few entries of one request stream and their holders. Prompts are not sent.
-- KEYS[1] request stream   ARGV[1] group, ARGV[2] where to begin, ARGV[3] how many
-- Returns {entry id, request id, deadline, bytes of the payload, consumer or '', idle ms, deliveries} per entry
local found = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], ARGV[2], '+', 'COUNT', ARGV[3])) do
  local id, fields = entry[1], {}
  for i = 1, #entry[2], 2 do fields[entry[2][i]] = entry[2][i + 1] end
  local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1], id, id, 1)
  local held = not pending.err and pending[1] or {id, '', 0, 0}
  -- The entry's writer may have put anything into it.
  local request_id, deadline = string.sub(fields['id'] or '', 1, 256), string.sub(fields['deadline'] or '', 1, 32)
  found[#found + 1] = {id, request_id, deadline, #(fields['payload'] or ''), held[2], held[3], held[4]}
end
return found
