#!lua
-- The site queue's operations: each call is one of them, whole or not at all, on the server's clock.
-- KEYS[1] is <prefix>:{0}:count; every other key is made from it and so has the same hash tag.
-- ARGV[1] names the operation; crawler/sites/queue.py is the only caller and documents each.
-- Rule: check everything first, write last, for a script that fails after a write keeps the write.
--
-- A site's record is one field of one of 65,536 small hashes: `state address [token agent work]`.
-- States: w waiting, s suspended (has a checkpoint), l due later, f finished, p paused; a held site keeps its
-- state and names token, holder and work behind it. `-` is an address not known yet.

local base = string.sub(KEYS[1], 1, -6)
local count = KEYS[1]
local call = redis.call

local names = { w = 'waiting', s = 'suspended', l = 'later', f = 'finished', p = 'paused' }

local function now()
  local t = call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function bucket(site)
  return base .. 'sites:' .. string.sub(redis.sha1hex(site), 1, 4)
end

local function host_of(site)
  return string.match(site, '^%a+://(%[[^%]]*%])') or string.match(site, '^%a+://([^:/]+)') or site
end

local function read(site)
  local text = call('HGET', bucket(site), site)
  if not text then return nil end
  local state, address, rest = string.match(text, '^(%S) (%S+) ?(.*)$')
  local token, agent, work = string.match(rest, '^(%S+) (%S+) (%S+)$')
  return { state = state, address = address, token = token, agent = agent, work = work }
end

local function write(site, record)
  local text = record.state .. ' ' .. record.address
  if record.agent then
    text = text .. ' ' .. record.token .. ' ' .. record.agent .. ' ' .. record.work
  end
  call('HSET', bucket(site), site, text)
end

local function add(field, by)
  call('HINCRBY', count, field, by)
end

-- Moves a site that nobody holds from one state to another, in record and counts.
local function turn(site, record, state)
  if record.state ~= state then
    add(names[record.state], -1)
    add(names[state], 1)
    record.state = state
  end
end

local function again(work)
  return base .. 'again:' .. work
end

local function unpark(place)
  local site = call('LPOP', base .. 'park:' .. place)
  if site then call('LPUSH', again('site'), site) end
end

local function occupy(place)
  call('HINCRBY', base .. 'busy', place, 1)
end

local function vacate(place)
  if call('HINCRBY', base .. 'busy', place, -1) <= 0 then call('HDEL', base .. 'busy', place) end
  unpark(place)
end

local function busy(place)
  return tonumber(call('HGET', base .. 'busy', place) or 0)
end

-- Ends a lease in record, counts and occupied places; the caller decides the state that follows.
local function release(site, record)
  vacate(host_of(site))
  if record.address ~= '-' then vacate(record.address) end
  call('HDEL', base .. 'held:' .. record.agent, site)
  add('leased', -1)
  record.agent = nil
end

local function has_checkpoint(site)
  return call('EXISTS', base .. 'checkpoint:' .. site) == 1
end

-- A dead agent's site goes back to the front: somebody was in the middle of it.
local function hand_back(site, record, time)
  local work = record.work
  release(site, record)
  if work == 'site' then
    if record.state ~= 'p' then turn(site, record, has_checkpoint(site) and 's' or 'w') end
    if record.state ~= 'p' then call('RPUSH', again('site'), site) end
  else
    call('ZADD', base .. 'wake:' .. work, time, site)
  end
  write(site, record)
end

-- After a silence of half a lease nobody is swept: every session gets one more lease time first.
local function forgive_silence(time, lease_ms)
  local last = tonumber(call('GET', base .. 'renewed') or time)
  if time - last > lease_ms / 2 then
    for _, agent in ipairs(call('ZRANGE', base .. 'agents', 0, 9999)) do
      call('ZADD', base .. 'agents', time + lease_ms, agent)
    end
    call('SET', base .. 'renewed', time)
  end
end

-- Takes up to 100 sites from one dead agent, if there is one; its session goes when none is left.
local function sweep(time, lease_ms)
  forgive_silence(time, lease_ms)
  local dead = call('ZRANGEBYSCORE', base .. 'agents', 0, time, 'LIMIT', 0, 1)[1]
  if not dead then return end
  local held = call('HGETALL', base .. 'held:' .. dead)
  for i = 1, math.min(#held, 200), 2 do
    local site = held[i]
    local record = read(site)
    if record and record.agent == dead then
      hand_back(site, record, time)
    else
      call('HDEL', base .. 'held:' .. dead, site)
    end
  end
  if call('HLEN', base .. 'held:' .. dead) == 0 then
    call('ZREM', base .. 'agents', dead)
    call('UNLINK', base .. 'agent:' .. dead)
  end
end

local function wake(work, time)
  local key = base .. 'wake:' .. work
  local due = call('ZRANGEBYSCORE', key, 0, time, 'LIMIT', 0, 100)
  for _, site in ipairs(due) do
    call('ZREM', key, site)
    call('RPUSH', again(work), site)
    if work == 'site' then
      local record = read(site)
      if record and record.state == 'l' then
        turn(site, record, has_checkpoint(site) and 's' or 'w')
        write(site, record)
      end
    end
  end
end

local function pop(work, hour)
  local site = call('LPOP', again(work))
  if site or work ~= 'site' then return site end
  return call('LPOP', base .. 'hour:' .. hour) or call('LPOP', base .. 'fresh')
end

local function eligible(record, work)
  if not record or record.agent or record.state == 'p' then return false end
  if work == 'site' then return record.state == 'w' or record.state == 's' end
  return true
end

local operations = {}

-- agent, lease ms, description (JSON) -> server's time. Opens or renews a session.
function operations.join(agent, lease_ms, description)
  local time = now()
  forgive_silence(time, tonumber(lease_ms))
  call('ZADD', base .. 'agents', time + lease_ms, agent)
  call('HSET', base .. 'agent:' .. agent, 'about', description, 'joined', time)
  call('SET', base .. 'renewed', time)
  return time
end

-- agent, lease ms, pages -> sites this agent must give back; error GONE where the session is no more.
function operations.renew(agent, lease_ms, pages)
  local time = now()
  if not call('ZSCORE', base .. 'agents', agent) then return redis.error_reply('GONE ' .. agent) end
  forgive_silence(time, tonumber(lease_ms))
  call('ZADD', base .. 'agents', time + lease_ms, agent)
  call('HSET', base .. 'agent:' .. agent, 'pages', pages)
  call('SET', base .. 'renewed', time)
  return call('SMEMBERS', base .. 'stop:' .. agent)
end

-- agent -> nothing. Ends a session; sites it still holds are handed back.
function operations.part(agent)
  local time = now()
  local held = call('HGETALL', base .. 'held:' .. agent)
  for i = 1, #held, 2 do
    local record = read(held[i])
    if record and record.agent == agent then hand_back(held[i], record, time) end
  end
  call('UNLINK', base .. 'held:' .. agent, base .. 'agent:' .. agent, base .. 'stop:' .. agent)
  call('ZREM', base .. 'agents', agent)
  return 0
end

-- most sites (0: no limit), again ('1': finished ones are walked anew), then per site: name, record (JSON) or '',
-- paths (newline-separated) or '' -> per site 1 new, 0 known, 2 walked anew, -1 refused by the limit.
function operations.discover(most, anew, ...)
  local given = { ... }
  local answer = {}
  local known = tonumber(call('HGET', count, 'added') or 0)
  most = tonumber(most)
  for i = 1, #given, 3 do
    local site, record, paths = given[i], given[i + 1], given[i + 2]
    local old = read(site)
    if old and old.state == 'f' and not old.agent and anew == '1' then
      turn(site, old, 'w')
      write(site, old)
      call('RPUSH', base .. 'fresh', site)
      answer[#answer + 1] = 2
    elseif old then
      answer[#answer + 1] = 0
    elseif most > 0 and known >= most then
      answer[#answer + 1] = -1
    else
      known = known + 1
      write(site, { state = 'w', address = '-' })
      call('RPUSH', base .. 'fresh', site)
      add('waiting', 1)
      add('added', 1)
      if record ~= '' then call('XADD', base .. 'results', '*', 'v', '1', 'r', record) end
      answer[#answer + 1] = 1
    end
    if paths ~= '' and answer[#answer] >= 0 and (not old or old.state ~= 'f') then
      call('RPUSH', base .. 'paths:' .. site, paths)
    end
  end
  return answer
end

-- agent, lease ms, work, sites wanted, limit per address, hour, names looked at at most
-- -> flat list: sites waiting or suspended, sites leased, agents; then per site: name, token, state, address.
-- Error GONE without a session.
function operations.lease(agent, lease_ms, work, wanted, limit, hour, look)
  local time = now()
  lease_ms, wanted, limit, look = tonumber(lease_ms), tonumber(wanted), tonumber(limit), tonumber(look)
  sweep(time, lease_ms)
  if not call('ZSCORE', base .. 'agents', agent) then return redis.error_reply('GONE ' .. agent) end
  wake(work, time)
  local answer = {
    tonumber(call('HGET', count, 'waiting') or 0) + tonumber(call('HGET', count, 'suspended') or 0),
    tonumber(call('HGET', count, 'leased') or 0),
    call('ZCARD', base .. 'agents'),
  }
  while wanted > 0 and look > 0 do
    local site = pop(work, hour)
    if not site then break end
    look = look - 1
    local record = read(site)
    if record and record.agent and work ~= 'site' then
      call('ZADD', base .. 'wake:' .. work, time + lease_ms / 3, site)
    elseif eligible(record, work) then
      local host = host_of(site)
      if busy(host) > 0 then
        call('RPUSH', base .. 'park:' .. host, site)
      elseif record.address ~= '-' and busy(record.address) >= limit then
        call('RPUSH', base .. 'park:' .. record.address, site)
      else
        occupy(host)
        if record.address ~= '-' then occupy(record.address) end
        local state = record.state
        record.token, record.agent, record.work = call('HINCRBY', count, 'token', 1), agent, work
        add('leased', 1)
        if work == 'site' then add(names[state], -1) end
        write(site, record)
        call('HSET', base .. 'held:' .. agent, site, record.token .. ' 0')
        for _, part in ipairs({ site, tostring(record.token), state, record.address }) do
          answer[#answer + 1] = part
        end
        wanted = wanted - 1
      end
    end
  end
  return answer
end

-- agent, site, token, address, limit -> 1 the place is taken, 0 the address is full (leave with `parked`).
function operations.locate(agent, site, token, address, limit)
  local record = read(site)
  if not record or record.token ~= token or record.agent ~= agent then return redis.error_reply('STALE ' .. site) end
  if record.address == address then return 1 end
  local free = busy(address) < tonumber(limit)
  if record.address ~= '-' then vacate(record.address) end
  record.address = free and address or '-'
  if free then occupy(address) end
  write(site, record)
  return free and 1 or 0
end

-- agent, then per site: name, token, seq, delta (or ''), fold ('1': the delta is the whole checkpoint),
-- number of records, then per record JSON and links -> per site OK, AGAIN (a resend), STALE or GAP.
function operations.publish(agent, ...)
  local given = { ... }
  local answer = {}
  local i = 1
  while i <= #given do
    local site, token, seq, delta, fold, n = given[i], given[i + 1], tonumber(given[i + 2]), given[i + 3], given[i + 4], tonumber(given[i + 5])
    i = i + 6
    local held = call('HGET', base .. 'held:' .. agent, site)
    local holds, last = string.match(held or '', '^(%S+) (%S+)$')
    if holds ~= token then
      answer[#answer + 1] = 'STALE'
    elseif tonumber(last) == seq then
      answer[#answer + 1] = 'AGAIN'
    elseif tonumber(last) + 1 ~= seq then
      answer[#answer + 1] = 'GAP'
    else
      for k = i, i + 2 * n - 1, 2 do
        if given[k + 1] == '' then
          call('XADD', base .. 'results', '*', 'v', '1', 'r', given[k])
        else
          call('XADD', base .. 'results', '*', 'v', '1', 'r', given[k], 'l', given[k + 1])
        end
      end
      if fold == '1' then call('UNLINK', base .. 'checkpoint:' .. site) end
      if delta ~= '' then call('RPUSH', base .. 'checkpoint:' .. site, delta) end
      call('HSET', base .. 'held:' .. agent, site, token .. ' ' .. given[i - 4])
      answer[#answer + 1] = 'OK'
    end
    i = i + 2 * n
  end
  return answer
end

-- agent, site, token, how (finished, returned, suspended, parked, later), due (ms, for later), paths seen,
-- record (JSON) or '' -> 1 done, 0 more paths were given meanwhile (go on), error STALE.
function operations.leave(agent, site, token, how, due, paths, report)
  local record = read(site)
  if not record or record.token ~= token or record.agent ~= agent then return redis.error_reply('STALE ' .. site) end
  if how == 'finished' and call('LLEN', base .. 'paths:' .. site) > tonumber(paths) then return 0 end
  local work, paused = record.work, record.state == 'p'
  release(site, record)
  call('SREM', base .. 'stop:' .. agent, site)
  if report ~= '' then call('XADD', base .. 'results', '*', 'v', '1', 'r', report) end
  if work ~= 'site' then
    if tonumber(due) > 0 then call('ZADD', base .. 'wake:' .. work, due, site) end
    write(site, record)
    return 1
  end
  local state = has_checkpoint(site) and 's' or 'w'
  if how == 'finished' then
    state = 'f'
    call('UNLINK', base .. 'checkpoint:' .. site, base .. 'paths:' .. site)
  elseif paused then
    state = 'p'
  elseif how == 'later' then
    state = 'l'
    call('ZADD', base .. 'wake:site', due, site)
  elseif how == 'returned' then
    call('RPUSH', again('site'), site)
  elseif how == 'parked' then
    call('RPUSH', base .. 'park:' .. paths, site)
  end
  add(names[state], 1)
  record.state = state
  write(site, record)
  return 1
end

-- -> the counts and list lengths that tell whether anything is left: waiting, suspended, leased, later, paused,
-- finished, added, records in the stream, agents.
function operations.depth()
  local answer = {}
  for _, field in ipairs({ 'waiting', 'suspended', 'leased', 'later', 'paused', 'finished', 'added' }) do
    answer[#answer + 1] = tonumber(call('HGET', count, field) or 0)
  end
  answer[#answer + 1] = call('EXISTS', base .. 'results') == 1 and call('XLEN', base .. 'results') or 0
  answer[#answer + 1] = call('ZCARD', base .. 'agents')
  return answer
end

local operation = operations[ARGV[1]]
if not operation then return redis.error_reply('no such operation: ' .. tostring(ARGV[1])) end
return operation(unpack(ARGV, 2))
