-- The plan of the hours, and the locks of planner and coordinator.

-- lock (planner, opener), holder, ms -> a fencing number while this holder has the lock, else 0. Asked again it holds
-- on.
function operations.lock(lock, holder, ms)
  local name, number = string.match(call('GET', base .. lock) or '', '^(%S+) (%S+)$')
  if name and name ~= holder then return 0 end
  if not name then number = call('HINCRBY', count, 'locks', 1) end
  call('SET', base .. lock, holder .. ' ' .. number, 'PX', ms)
  return tonumber(number)
end

-- planner, number, list (hour or probe), hour, seconds that it is kept, '1' if it is to be cleared first, names …
-- -> length of the list; error LOST where the lock is another's.
function operations.fill(planner, number, list, hour, seconds, anew)
  if not is_holder('planner', planner, number) then return redis.error_reply('LOST ' .. planner) end
  local key = base .. list .. ':' .. hour
  if anew == '1' then call('UNLINK', key) end
  for i = 8, #ARGV, 1000 do
    call('RPUSH', key, unpack(ARGV, i, math.min(i + 999, #ARGV)))
  end
  call('EXPIRE', key, seconds) -- at every part: a planner may die before the last
  return call('LLEN', key)
end

-- planner, number, hour -> 1. The hour's plan is whole; error LOST where the lock is another's.
function operations.planned(planner, number, hour)
  if not is_holder('planner', planner, number) then return redis.error_reply('LOST ' .. planner) end
  call('HSET', count, 'planned', hour)
  return 1
end

-- planner, number, sites … -> how many of them are held for loading; their holders are told with their next renewal.
-- Error LOST where the lock is another's.
function operations.suspend(planner, number)
  if not is_holder('planner', planner, number) then return redis.error_reply('LOST ' .. planner) end
  local told = 0
  for i = 4, #ARGV do
    local record = read(ARGV[i])
    if record and record.agent and record.work == 'site' then
      call('SADD', base .. 'suspend:' .. record.agent, ARGV[i])
      told = told + 1
    end
  end
  return told
end
