-- Fail where a gateway that has a reader to mark would: memory is full, replicas are missing, or the slot is being moved
-- KEYS[1] clients, KEYS[2] a key that never exists, so nothing is written
redis.call('SET', KEYS[2], '', 'PX', 1, 'XX')
return 1
