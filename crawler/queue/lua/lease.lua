-- Which site an agent gets.

local function is_packed(site, work)
  return call('HEXISTS', base .. 'visit:' .. site, work) == 1
end

-- Number of sites that can be leased for a job, among the first 16 of its list: a share of a few sites needs no more.
local function at_hand(work, time, packed)
  local many = 0
  for _, site in ipairs(call('LRANGE', again(work), 0, 15)) do
    local due = tonumber(call('ZSCORE', base .. 'wake:site', site) or 0)
    local ready = due <= time and (not packed or is_packed(site, work))
    if ready and eligible(record_of(site), work) then many = many + 1 end
  end
  return many
end

-- The site's host or address without a free slot; nil if both have one.
local function full_place(site, record, ask)
  local host = host_of(site)
  if busy(host) > 0 then return host end
  if record.address ~= '-' and not has_room(record.address, unpack(ask.limits)) then return record.address end
end

-- The site waits until its host or address has a free slot.
local function await_slot(site, record, full, ask)
  local host = host_of(site)
  if ask.work ~= 'site' then
    local next_try = full == host and ask.soon or math.min(ask.soon, ask.time + FULL_MS)
    call('ZADD', base .. 'wake:' .. ask.work, 'GT', next_try, site)
    return
  end
  park(site, full)
  -- With this site the address may count as shared, and has room again.
  if full ~= host and has_room(full, unpack(ask.limits)) then unpark(full) end
  -- The site may have been woken to take a slot of the other kind: wake the next one in its place.
  if full ~= host then unpark(host) elseif record.address ~= '-' then unpark(record.address) end
end

local function give_lease(site, record, probe, ask)
  call('SREM', base .. 'parked', site)
  occupy(host_of(site))
  if record.address ~= '-' then settle(record.address, unpack(ask.limits)) end
  local state = record.state
  local token = tostring(call('HINCRBY', count, 'token', 1))
  alter(site, record, function(r) r.token, r.agent, r.work = token, ask.agent, ask.work end)
  call('HSET', base .. 'held:' .. ask.agent, site, token .. ' 0 0 0 ' .. (record.progress or '0/0/0'))
  local more = state == 's'
    or call('EXISTS', base .. 'paths:' .. site) == 1
    or call('HEXISTS', base .. 'budget', site) == 1
  local flags = state .. (more and '+' or '') .. (probe and '?' or '')
  if may_be_alias_of(site, record) then flags = flags .. '~' end
  local answer = ask.answer
  for _, part in ipairs({ site, token, flags, record.address }) do
    answer[#answer + 1] = part
  end
  ask.wanted = ask.wanted - 1
end

-- A site that cannot be leased now: sets when it is tried again.
local function put_off(site, record, due, spare, ask)
  local work, wake_key = ask.work, base .. 'wake:' .. ask.work
  if record and record.agent and record.work ~= work then
    wait_behind(site, work, ask.soon)
  elseif work ~= 'site' then
    if record and record.agent then
      call('ZADD', wake_key, 'GT', ask.soon, site)
    elseif record and record.paused then
      call('ZADD', wake_key, 'GT', ask.time + PAUSED_MS, site)
    elseif eligible(record, work) then
      call('ZADD', wake_key, 'GT', due, site)
    end
  elseif not spare and record and record.agent
    and call('SISMEMBER', base .. 'suspend:' .. record.agent, site) == 1 then
    ask.coming[#ask.coming + 1] = site
  elseif not spare then
    -- The site may have been woken to take a slot: wake the next one in its place.
    unpark(host_of(site))
    if record and record.address ~= '-' then unpark(record.address) end
  end
end

-- Leases one site or puts it off. A `spare` one was not taken from a list, and stays where it is if it cannot be leased.
local function try_site(site, probe, spare, ask)
  local record, broken = record_of(site)
  if broken then
    -- Back into the list, so that every agent reports it: otherwise the site would be counted and never crawled.
    if not spare then call('LPUSH', again(ask.work), site) end
    error(no_record(site))
  end
  -- A list may name a site that has a due time: at that time the site comes back.
  local due = tonumber(call('ZSCORE', base .. 'wake:site', site) or 0)
  if not eligible(record, ask.work) or due > ask.time then return put_off(site, record, due, spare, ask) end
  if ask.packed and not is_packed(site, ask.work) then
    call('ZADD', base .. 'wake:' .. ask.work, 'NX', ask.time + UNPACKED_MS, site)
    return
  end
  local full = full_place(site, record, ask)
  if not full then return give_lease(site, record, probe, ask) end
  if not spare then await_slot(site, record, full, ask) end
end

-- Takes names from the lists until enough sites are leased or `look` names were tried; returns how many are left to try.
local function lease_from_lists(look, ask)
  while ask.wanted > 0 and look > 0 do
    local site, probe = pop(ask.work, ask.hour)
    if not site then break end
    look = look - 1
    try_site(site, probe, false, ask)
  end
  for i = #ask.coming, 1, -1 do
    call('LPUSHX', base .. 'hour:' .. ask.hour, ask.coming[i])
  end
  return look
end

-- agent, lease ms, job, sites wanted, limit per address, crowd, limit of a crowded address, hour, most names to try,
-- '1' if the agent is starved without what it does not get, '1' if only sites with a packet are wanted, the number of
-- its last acknowledged call of `offer`
-- -> flat list: sites waiting or suspended (of another job than the crawl: some of those that could be leased now),
-- sites leased, agents, 1 if there may be more names to try, sites that other agents lack; then per site: name, token,
-- state with + behind it if there is a checkpoint, a budget or paths to read, ? for a probe, ~ for a possible alias,
-- address. Only crawls count as starved: other jobs get 0. Errors: GONE without a session, OLDER as `offer`.
function operations.lease(agent, lease_ms, work, wanted, limit, crowd, crowd_limit, hour, look, hungry, packed, offers)
  local time = now()
  lease_ms, look = tonumber(lease_ms), tonumber(look)
  sweep(time, lease_ms)
  if not has_session(agent) then return gone(agent) end
  if is_older(agent, offers) then return older(agent) end
  wake(work, time)
  local totals = call('HMGET', count, 'waiting', 'suspended', 'leased')
  local answer = { tonumber(totals[1] or 0) + tonumber(totals[2] or 0), tonumber(totals[3] or 0), sessions(), 0, 0 }
  local ask = {
    agent = agent,
    work = work,
    time = time,
    soon = time + math.floor(lease_ms / 3),
    limits = { tonumber(limit), tonumber(crowd), tonumber(crowd_limit) },
    hour = hour,
    packed = packed == '1',
    wanted = tonumber(wanted),
    answer = answer,
    coming = {}, -- sites that their agents are about to suspend: they return to the head of the hour's list
  }
  look = lease_from_lists(look, ask)
  if ask.wanted > 0 and look > 0 and work == 'site' then
    for _, site in ipairs(call('SRANDMEMBER', base .. 'suspended', ask.wanted)) do
      try_site(site, false, true, ask)
    end
  end
  if look == 0 then answer[4] = 1 end
  if work ~= 'site' then answer[1] = at_hand(work, time, ask.packed) end
  if work == 'site' then answer[5] = note_hunger(agent, hungry == '1' and look > 0 and ask.wanted or 0, time) end
  return answer
end

-- agent, site, token, address, limit, crowd, limit of a crowded address
-- -> 1 the place is taken, 0 the address is full (leave with `parked`).
function operations.locate(agent, site, token, address, limit, crowd, crowd_limit)
  local record = own(site, token, agent)
  if not record then return stale(site) end
  if record.address == address then return 1 end -- its lease took the place
  limit, crowd, crowd_limit = tonumber(limit), tonumber(crowd), tonumber(crowd_limit)
  local free = has_room(address, limit, crowd, crowd_limit)
  if record.address ~= '-' then vacate(record.address) end
  record.address = free and address or '-'
  if free then settle(address, limit, crowd, crowd_limit) end
  write(site, record)
  return free and 1 or 0
end
