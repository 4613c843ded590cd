-- Sites that may be another one under a second name.

-- What is suspected of a site, or nil.
local function suspicion_of(site)
  local text = call('HGET', base .. 'suspected', site)
  local state, first, since, free, waits = string.match(text or '', '^(%l+) (%S+) (%d+) (%d+) (%d+)$')
  if not state then return nil end
  return { state = state, first = first, since = since, free = free, waits = waits }
end

local function note_suspicion(site, known)
  local text = table.concat({ known.state, known.first, known.since, known.free, known.waits }, ' ')
  call('HSET', base .. 'suspected', site, text)
  call(known.state == 'no' and 'SREM' or 'SADD', base .. 'namesakes:' .. known.first, site)
end

-- A coordinator looks at the site once all is stored that was published before now.
local function await_comparison(site)
  call('ZADD', base .. 'suspects', now(), site)
end

-- It may be leased again: what it waited for has come, or will not.
local function end_wait(site, known)
  if known.waits ~= '0' and tonumber(call('ZSCORE', base .. 'wake:site', site) or 0) == tonumber(known.waits) then
    call('ZADD', base .. 'wake:site', known.free, site)
  end
  known.free, known.waits = '0', '0'
end

local function clear_suspicion(site)
  local known = suspicion_of(site)
  if not known then return end
  end_wait(site, known)
  call('SREM', base .. 'namesakes:' .. known.first, site)
  call('HDEL', base .. 'suspected', site)
  call('ZREM', base .. 'suspects', site)
end

-- An alias is crawled after all, from where it was left out.
local function open_alias(site, record)
  call('HDEL', base .. 'why', site)
  alter(site, record, function(r) r.state = unfinished(site) end)
  tell_opened(site, record.progress, 'pending')
  enrol(site, now())
  if not record.paused then call('RPUSH', again('site'), site) end
end

-- The site is not crawled, or is crawled from its beginning: nothing is another's alias for its sake. `since` (ms),
-- where given: what was suspected of it begins again with pages that are fetched from then on.
local function part_namesakes(site, since)
  for _, name in ipairs(call('SMEMBERS', base .. 'namesakes:' .. site)) do
    local record = record_of(name)
    clear_suspicion(name)
    if record and record.state == 'a' then
      if since then
        call('UNLINK', base .. 'checkpoint:' .. name)
        undo(record)
        note_suspicion(name, { state = 'open', first = site, since = since, free = '0', waits = '0' })
      end
      open_alias(name, record)
    end
  end
end

-- A site that others may be an alias of: it is crawled under its own name.
local function is_crawled(record)
  return record and not record.paused and record.state ~= 'a' and record.state ~= 'b'
end

-- The site that stands for this one, if it is another one and crawled.
local function original(first, site)
  local record = first and record_of(first)
  if record and record.state == 'a' then
    first = call('HGET', base .. 'why', first)
    record = first and record_of(first)
  end
  if first ~= site and is_crawled(record) then return first, record end
end

local function begin_suspicion(site, first)
  local known, theirs = suspicion_of(site), suspicion_of(first)
  if known and known.first == first then return end
  clear_suspicion(site)
  if theirs and theirs.first == site then clear_suspicion(first) end
  note_suspicion(site, { state = 'open', first = first, since = '0', free = '0', waits = '0' })
  await_comparison(site)
end

-- The site's root page is loaded; `marks`, one a line, say what an alias has in common with its original. A site that a
-- link led to is suspected rather than one that was given as a seed.
local function compare_roots(site, record, marks)
  local found
  for mark in string.gmatch(marks, '[^\n]+') do
    local key = base .. 'alias:' .. string.sub(redis.sha1hex(mark), 1, 4)
    local first, other = original(call('HGET', key, mark), site)
    if not first then
      call('HSET', key, mark, site)
    elseif other.linked and not record.linked then
      call('HSET', key, mark, site)
      begin_suspicion(first, site)
      if other.agent and other.work == 'site' then call('SADD', base .. 'suspend:' .. other.agent, first) end
    else
      found = found or first
    end
  end
  if found then begin_suspicion(site, found) end
  local known = suspicion_of(site)
  if known and known.state == 'open' and known.since == '0' and known.first ~= found then clear_suspicion(site) end
end

-- The site that this one may be left out for, if it is to be compared with it.
local function may_be_alias_of(site, record)
  local known = record.linked and suspicion_of(site)
  return known and known.state == 'open' and known.first
end

-- The site is left out for another one: so are those that are left out for it, and the others are compared with that
-- one.
local function turn_namesakes(site, first)
  for _, name in ipairs(call('SMEMBERS', base .. 'namesakes:' .. site)) do
    local known, record = suspicion_of(name), record_of(name)
    call('SREM', base .. 'namesakes:' .. site, name)
    if known and name ~= first then
      known.first = first
      note_suspicion(name, known)
      await_comparison(name)
      if record and record.state == 'a' then call('HSET', base .. 'why', name, first) end
    end
  end
end

-- A lease for loading has ended: what it brought is compared, and who may be an alias waits for that. `due`: the time
-- (ms) before which the site must not be asked.
local function await_comparisons(site, record, how, due)
  for _, name in ipairs(call('SRANDMEMBER', base .. 'namesakes:' .. site, MOST_NAMESAKES)) do
    await_comparison(name)
  end
  local known = suspicion_of(site)
  if not known or known.state == 'no' then return end
  await_comparison(site)
  local goes_on = (how == 'returned' or how == 'suspended') and (record.state == 'w' or record.state == 's')
  if not goes_on or not may_be_alias_of(site, record) then return end
  known.free = string.format('%.0f', tonumber(due) or 0)
  known.waits = string.format('%.0f', math.max(tonumber(due) or 0, now() + COMPARED_MS))
  call('ZADD', base .. 'wake:site', known.waits, site)
  note_suspicion(site, known)
end

-- The operator says that the site is no alias of the one that it was suspected to be.
local function free_of_suspicion(site)
  local known = suspicion_of(site)
  if not known then return end
  end_wait(site, known)
  known.state = 'no'
  note_suspicion(site, known)
  call('ZREM', base .. 'suspects', site)
end
