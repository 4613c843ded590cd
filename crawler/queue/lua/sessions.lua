-- Sessions of agents, and whose crawl a prefix is.

-- Arguments of an operation that are not its list.
local MOST_ARGUMENTS = 12

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

-- agent, lease ms, pages -> server's time, how many sites the operator wants back, how many the plan wants suspended,
-- the names of both, then those of sites that were given paths; error GONE where the session is no more.
function operations.renew(agent, lease_ms, pages)
  local time = now()
  if not has_session(agent) then return gone(agent) end
  forgive_silence(time, tonumber(lease_ms))
  call('ZADD', base .. 'agents', time + lease_ms, agent)
  call('HSET', base .. 'agent:' .. agent, 'pages', pages)
  call('SET', base .. 'renewed', time)
  local answer = { time, 0, 0 }
  for i, kind in ipairs({ 'stop:', 'suspend:', 'given:' }) do
    local names = call('SMEMBERS', base .. kind .. agent)
    if i < 3 then answer[i + 1] = #names end
    for _, site in ipairs(names) do
      answer[#answer + 1] = site
    end
  end
  -- Where this answer is lost, the holder finds the paths when it ends the site.
  call('UNLINK', base .. 'given:' .. agent)
  return answer
end

-- agent -> nothing. Ends a session; sites it still holds are handed back.
function operations.part(agent)
  local time = now()
  for _, site in ipairs(call('HKEYS', base .. 'held:' .. agent)) do
    take_from(agent, site, time)
  end
  local about = { 'held:', 'agent:', 'stop:', 'suspend:', 'given:' }
  for _, kind in ipairs(about) do
    call('UNLINK', base .. kind .. agent)
  end
  call('ZREM', base .. 'agents', agent)
  call('HDEL', base .. 'hungry', agent)
  return 0
end

-- In the versions before, `reopen` and `undecided` were sets, and `plan` was the number of the last lock.
local function renew_keys()
  local function members_of_old(name)
    local key = base .. name
    if call('TYPE', key).ok ~= 'set' then return {} end
    local sites = call('SMEMBERS', key)
    call('UNLINK', key)
    return sites
  end
  local offered, noted = members_of_old('undecided'), members_of_old('reopen')
  for _, site in ipairs(offered) do await_decision(site) end
  for _, site in ipairs(noted) do
    local record = record_of(site)
    if record then note_reopening(site, record) end
  end
  local number = call('HGET', count, 'plan')
  if number then
    call('HDEL', count, 'plan')
    call('HINCRBY', count, 'locks', number)
  end
end

-- spider -> the spider whose crawl this is: this one, or the one that came first.
function operations.claim(spider)
  renew_keys()
  call('SET', base .. 'crawl', spider, 'NX')
  return call('GET', base .. 'crawl')
end
