-- Prepended to other scripts: the id of the request in an entry; nil if there is no such entry, '' if it has no id.
-- Two masters that did not know of each other may have given one entry id to two requests.
local function request_of(stream, entry_id)
  local entry = redis.call('XRANGE', stream, entry_id, entry_id)[1]
  if not entry then return nil end
  local found = ''
  for i = 1, #entry[2], 2 do
    if entry[2][i] == 'id' then found = entry[2][i + 1] end
  end
  return found
end

