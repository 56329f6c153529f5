-- Return the next few dead letters, newest first, without their prompts.
-- KEYS[1] dead letters   ARGV[1] where to begin, ARGV[2] how many
-- Returns {letter id, entry, reason, message, attempts, request id, deadline, bytes of the payload} per letter
local found = {}
for _, letter in ipairs(redis.call('XREVRANGE', KEYS[1], ARGV[1], '-', 'COUNT', ARGV[2])) do
  local flat, own, request = letter[2], {}, {}
  -- bury.lua puts its own five fields before those of the entry, which may have the same names.
  for i = 1, #flat, 2 do
    local fields = i <= 10 and own or request
    fields[flat[i]] = flat[i + 1]
  end
  local function text(fields, name) return string.sub(fields[name] or '', 1, 1000) end
  found[#found + 1] = {
    letter[1], text(own, 'entry'), text(own, 'reason'), text(own, 'message'), text(own, 'attempts'),
    text(request, 'id'), text(request, 'deadline'), #(request['payload'] or ''),
  }
end
return found
